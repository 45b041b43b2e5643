"""Plays recorded targets of upstream's expert back as actions: does what a policy learns from still solve the task?

Usage: python tools/robotwin_replay.py [TASK...]
For each task the first 5 scenes from 1 200 000 on that the expert solves. Prints a row a task, and the sum.
"""

import sys

import gymnasium
import numpy as np
from replan.envs import SUITES
from replan.envs.robotwin.demonstrations import FRAME_TICKS

FIRST, SCENES, MOST = 1_200_000, 5, 15  # evaluated scenes lie around 100 000, the recordings' above 2 000 000


def main() -> None:
    """Prints the table."""
    env = gymnasium.make("replan/RoboTwin-v0", disable_env_checker=True).unwrapped
    env.cameras_on = False
    played = solved = 0
    print("| task | replayed | solved | actions |\n|---|---|---|---|")
    for task in sys.argv[1:] or SUITES["robotwin"].tasks:
        lengths = []
        for scene in range(FIRST, FIRST + MOST):
            if len(lengths) < SCENES and (targets := _demonstration(env, task, scene)):
                lengths.append(_replay(env, task, scene, targets))
        done = [length for length in lengths if length]
        played, solved = played + len(lengths), solved + len(done)
        print(f"| `{task}` | {len(lengths)} | {len(done)} | {np.median(done) if done else 0:.0f} |", flush=True)
    print(f"| all | {played} | {solved} | |")


def _demonstration(env, task: str, scene: int) -> list[np.ndarray]:
    """The expert's targets, empty if it does not solve the scene."""
    targets = []
    try:
        env.reset(seed=0, options={"task": task, "init_state": scene})
    except env.unstable:
        return []
    return targets if env.demonstrate(FRAME_TICKS, lambda _, target: targets.append(target)) else []


def _replay(env, task: str, scene: int, targets: list[np.ndarray]) -> int:
    """Actions until success, 0 if there is none."""
    env.reset(seed=0, options={"task": task, "init_state": scene})
    for number, target in enumerate(targets[1:], 1):
        _, _, success, truncated, _ = env.step(target.astype(np.float32))
        if success or truncated:
            return number if success else 0
    return 0


if __name__ == "__main__":
    main()
