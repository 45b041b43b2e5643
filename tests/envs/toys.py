"""A suite in a page, and what its author may get wrong: environments without a simulator, for ``check_suite``."""

from __future__ import annotations

import os
import random  # noqa: TID251  # an error to plant
from typing import Any

import numpy as np
from gymnasium import spaces
from replan.envs.suite import Suite
from replan.envs.world import CellEnv

TASKS = ("left", "right")


class Toy(CellEnv):
    """A point on a line has to come to a goal. Positions in metres."""

    metadata = {"render_modes": [], "render_fps": 10}
    tick_ns = 10_000_000
    ticks_per_action = 10

    def __init__(self, speed: float = 1.0, render_mode: str | None = None) -> None:
        super().__init__(TASKS, init_states=4, render_mode=render_mode)
        self.speed = speed
        self.observation_space = spaces.Dict(
            {
                "eye": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                "state": spaces.Box(-np.inf, np.inf, (1,), np.float32),
                "instruction": spaces.Text(16, charset="efghilort "),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, init_state, TASKS.index(task)])
        self.instruction, self.goal = f"go {task}", -3.0 if task == "left" else 3.0
        self.x, self.velocity = float(rng.uniform(-1, 1)), 0.0
        return {
            "init_state": repr(self.x),
            "fixtures": "none",
            "instruction": self.instruction,
            "step_budget": "5 s",
            "success_rule": "the point is at the goal",
        }

    def _act(self, action: np.ndarray) -> str | None:
        self.velocity = self.speed * float(np.clip(action, -1, 1)[0])
        self._advance(self.ticks_per_action)
        self.time_ns += self.ticks_per_action * self.tick_ns
        if self._solved():
            return "success"
        return "time" if self.time_ns >= 5_000_000_000 else None

    def _solved(self) -> bool:
        return abs(self.x - self.goal) < 0.1

    def _observe(self) -> dict[str, Any]:
        eye = np.full((4, 4, 3), int(self.x * 10) % 200 + 1 if self.cameras_on else 0, np.uint8)
        return {"eye": eye, "state": np.array([self.x], np.float32), "instruction": self.instruction}

    def _advance(self, ticks: int) -> None:
        self.x += self.velocity * ticks * self.tick_ns / 1e9

    def _state(self) -> np.ndarray:
        return np.array([self.x, self.velocity])


class EndsAtOnce(Toy):
    def _act(self, action):
        super()._act(action)
        return "missed"


class RemembersTheLastCell(Toy):
    def _begin(self, task, init_state, seed):
        drift = 1e-9 if hasattr(self, "x") and self.instruction != f"go {task}" else 0.0
        manifest = super()._begin(task, init_state, seed)
        self.x += drift
        return manifest


class DependsOnTheProcess(Toy):
    def _begin(self, task, init_state, seed):
        return super()._begin(task, init_state, seed + os.getpid())


class IgnoresTheInitialState(Toy):
    def _begin(self, task, init_state, seed):
        return super()._begin(task, 0, seed)


class ReusesItsImage(Toy):
    def _observe(self):
        observation = super()._observe()
        if not hasattr(self, "buffer"):
            self.buffer = observation["eye"]
        self.buffer[:] = observation["eye"]
        return {**observation, "eye": self.buffer}


class ReusesItsState(Toy):
    def get_state(self):
        if not hasattr(self, "buffer"):
            self.buffer = super().get_state()
        self.buffer[:] = super().get_state()
        return self.buffer


class StepsWithoutAReset(Toy):
    x = velocity = goal = 0.0
    instruction = "go"

    def _require_start(self):
        pass


class TakesAnyAction(Toy):
    def step(self, action):
        return super().step(np.resize(np.nan_to_num(np.asarray(action, float)), 1))


class TakesAnyTask(Toy):
    def reset(self, *, seed=None, options=None):
        task = {"task": "left"} if options and options.get("task") not in TASKS else {}
        return super().reset(seed=seed, options={**(options or {}), **task})


class TakesAnyInitialState(Toy):
    def _check_init_state(self, init_state):
        pass


class RendersInTheDark(Toy):
    def _observe(self):
        lit, self.cameras_on = self.cameras_on, True
        observation = super()._observe()
        self.cameras_on = lit
        return observation


class MovesOnlyWhereItIsSeen(Toy):
    def _observe(self):
        if self.cameras_on:
            self.x += 1e-9
        return super()._observe()


class HasNoBlackImage(Toy):
    def _observe(self):
        observation = super()._observe()
        if not self.cameras_on:
            observation["eye"] = np.zeros((0, 0, 3), np.uint8)
        return observation


class UsesTheGlobalGenerator(Toy):
    def _act(self, action):
        self.x += random.random() * 1e-9
        return super()._act(action)


class SeedsTheGlobalGenerator(Toy):
    def _begin(self, task, init_state, seed):
        np.random.seed(seed)  # noqa: NPY002
        return super()._begin(task, init_state, seed)


class HoldsWithoutTime(Toy):
    def hold(self, ticks):
        before = self.time_ns
        super().hold(ticks)
        self.time_ns = before


class HoldsBackwards(Toy):
    def hold(self, ticks):
        self._require_episode()
        self._advance(ticks)
        self.time_ns += ticks * self.tick_ns


class HasNoTime(Toy):
    def step(self, action):
        result = super().step(action)
        self.time_ns = 0
        return result


class SaysTheOutcomeTooEarly(Toy):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {"outcome": "time", **info})


class SaysNoOutcome(Toy):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {"success": info["success"]})


class HasAFloat32State(Toy):
    def get_state(self):
        return super().get_state().astype(np.float32)


class DiffersLate(Toy):
    """After 0.4 s, a cell depends on the process."""

    def _act(self, action):
        outcome = super()._act(action)
        self.x += 1e-9 * os.getpid() if 2_900_000_000 <= self.time_ns < 3_000_000_000 else 0.0
        return outcome


class MovesLateWhereItIsSeen(Toy):
    def _observe(self):
        self.x += 1e-9 if self.cameras_on and self.time_ns > 2_000_000_000 else 0.0
        return super()._observe()


class HoldsWithoutMoving(Toy):
    def _advance(self, ticks):
        if ticks == self.ticks_per_action:
            super()._advance(ticks)


class RemembersInItsSecondTask(Toy):
    """A drift of the second task alone, from the cells before it."""

    def _begin(self, task, init_state, seed):
        self.cells = getattr(self, "cells", 0) + 1
        manifest = super()._begin(task, init_state, seed)
        self.x += 1e-9 * self.cells if task == TASKS[1] else 0.0
        return manifest


class SaysSuccessAsANumber(Toy):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {**info, "success": np.bool_(info["success"])})


class NeverLooksAgain(Toy):
    def step(self, action):
        *result, info = super().step(action)
        info.pop("success_at_end", None)
        return (*result, info)


class SaysAtEndAsANumber(Toy):
    def step(self, action):
        *result, info = super().step(action)
        return (*result, {**info, **({"success_at_end": 0} if "outcome" in info else {})})


class HasAnInfiniteManifest(Toy):
    def _begin(self, task, init_state, seed):
        return {**super()._begin(task, init_state, seed), "friction": float("inf")}


class HasATupleInItsInfo(Toy):
    def _info(self):
        return {"stages": (1, 2)}


class HasNumbersForNames(Toy):
    def _info(self):
        return {1: "reached"}


class HasAnArrayInItsInfo(Toy):
    def _info(self):
        return {"forces": np.zeros(2)}


class StepsAfterTheEnd(Toy):
    def _require_episode(self):
        self._require_start()


class StepsAfterClose(Toy):
    def close(self):
        pass


class TakesOverflow(Toy):
    def step(self, action):
        action = np.asarray(action)
        finite = action.dtype == np.float64 and np.isfinite(action).all()
        return super().step(np.clip(action, -2, 2) if finite else action)


class TakesAnySeed(Toy):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=int(seed) if seed is True else seed, options=options)


class TakesSmallSeedsOnly(Toy):
    def _begin(self, task, init_state, seed):
        if seed >= 2**32:
            raise ValueError("the seed is too large")
        return super()._begin(task, init_state, seed)


class HasAnArrayInItsManifest(Toy):
    def _begin(self, task, init_state, seed):
        return {**super()._begin(task, init_state, seed), "assets": np.zeros(2)}


class LacksASuccessRule(Toy):
    def _begin(self, task, init_state, seed):
        manifest = super()._begin(task, init_state, seed)
        del manifest["success_rule"]
        return manifest


class LeavesItsObservationSpace(Toy):
    def _observe(self):
        return {**super()._observe(), "extra": np.zeros(1)}


class NeverEnds(Toy):
    def _act(self, action):
        super()._act(action)


class FallsOver(Toy):
    def _act(self, action):
        raise KeyError("gripper")


class NeedsAnArgument(Toy):
    def __init__(self, *, shelf: str, render_mode: str | None = None) -> None:
        super().__init__()


class SamplesWithoutItsGenerator(Toy):
    """Gymnasium wants ``reset(seed=)`` without options to be repeatable, too."""

    def reset(self, *, seed=None, options=None):
        if options == {"task": "left"}:
            seed = None
        return super().reset(seed=seed, options=options)


def suite(kind: type[Toy], **changes: Any) -> Suite:
    described = {
        "name": kind.__name__,
        "env_id": f"toys/{kind.__name__}-v0",
        "entry_point": f"{kind.__module__}:{kind.__name__}",
        "tasks": TASKS,
        "init_states": 4,
        "cameras": ("eye",),
        "settings": {"speed": float},
    }
    return Suite(**{**described, **changes})
