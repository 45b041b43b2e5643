"""Begins every task of four LIBERO suites in one order and, in another process, in the reverse one, and compares.

Usage: python tools/libero_order.py. Pictures, observed and full state after the reset have to be equal, bit for bit.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import gymnasium
from replan.envs import SUITES

SUITE_NAMES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
STEPS = 3  # between one reset and the next, so that there is something to restore


def main() -> None:
    """Prints a line a suite."""
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        there = {suite: pool.submit(begin, suite, False) for suite in SUITE_NAMES}
        back = {suite: pool.submit(begin, suite, True) for suite in SUITE_NAMES}
        for suite in SUITE_NAMES:
            one, other = there[suite].result(), back[suite].result()
            differing = [cell for cell in one if one[cell] != other[cell]]
            print(f"{suite}: {len(one)} cells, {len(differing)} differ {differing or ''}", flush=True)


def begin(suite: str, backwards: bool) -> dict[tuple[str, int], str]:
    """Hashes of what each cell begins with; two states a task, one after the other in the same environment."""
    env = gymnasium.make(SUITES[suite].env_id, disable_env_checker=True).unwrapped
    cells = [(task, state) for task in SUITES[suite].tasks for state in (3, 17)]
    found = {}
    for task, state in reversed(cells) if backwards else cells:
        env.cameras_on = True
        observation, _ = env.reset(seed=0, options={"task": task, "init_state": state})
        digest = hashlib.sha256(env.get_state().tobytes())
        for key in ("agentview", "wrist", "state"):
            digest.update(observation[key].tobytes())
        found[task, state] = digest.hexdigest()
        env.cameras_on = False
        for _ in range(STEPS):
            env.step(env.action_space.sample())
    env.close()
    return found


if __name__ == "__main__":
    main()
