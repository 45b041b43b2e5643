"""Measures what it saves to draw LIBERO's cameras only for the observations that a policy looks at.

``python tools/libero_drawing_cost.py`` plays, for a task of each suite, the same actions in turn with pictures at
every step and at every tenth, and prints processor seconds an episode and episodes an hour on one core. Building the
simulator is not counted, and neither is a policy.
"""

from __future__ import annotations

import time  # noqa: TID251 (measures processor time)
from statistics import median

import gymnasium
import numpy as np
from replan.envs import SUITES

ROUNDS, STEPS, EXECUTED = 3, 100, 10


def main() -> None:
    """Prints a table."""
    print(f"{STEPS} control steps an episode, {ROUNDS} episodes each, alternating; processor seconds, median")
    print("suite          | every step | every 10th | episodes an hour")
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10"):
        env = gymnasium.make(SUITES[suite].env_id, disable_env_checker=True).unwrapped
        env.reset(seed=0, options={"task": SUITES[suite].tasks[0]})
        spent = {every: [] for every in (1, EXECUTED)}
        for episode in range(ROUNDS):
            states = [_play(env, suite, episode, every, spent[every]) for every in spent]
            assert np.array_equal(*states)
        env.close()
        eager, lazy = (median(seconds) for seconds in spent.values())
        print(f"{suite:14} | {eager:10.1f} | {lazy:10.1f} | {3600 / eager:.0f} -> {3600 / lazy:.0f}", flush=True)


def _play(env, suite: str, episode: int, every: int, spent: list[float]) -> np.ndarray:
    actions = np.random.default_rng(episode).uniform(-0.5, 0.5, (STEPS, 7)).astype(np.float32)
    start = time.process_time()
    env.cameras_on = True
    env.reset(seed=episode, options={"task": SUITES[suite].tasks[0], "init_state": episode})
    for step, action in enumerate(actions, 1):
        env.cameras_on = step % every == 0
        *_, terminated, _, _ = env.step(action)
        assert not terminated
    spent.append(time.process_time() - start)
    return env.get_state()


if __name__ == "__main__":
    main()
