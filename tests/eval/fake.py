"""A conveyor in one dimension and an agent to match, in NumPy: all that the harness asks of a suite and of a policy."""

from __future__ import annotations

import os
import time  # noqa: TID251  # a worker has to hang, and to take a while before it dies
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from replan.envs import Suite, SuiteUnavailable
from replan.eval.registry import MethodInfo, PolicyInfo, Registry
from replan.eval.spec import BadInput
from replan.results.schema import Mark

WINDOW = 4
altered: list[str] = []  # what a method changed, in this process, of what all agents of it share
shelves = {"boards": "oak 1"}  # what the shelf is made of; a test may change it
TASKS = ("left", "right", "middle", "up", "down", "abort")
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "belt",
            "fake/Belt-v0",
            f"{__name__}:Belt",
            ("left", "right", "middle"),
            settings={"speed": float, "still": bool, "log": str},
            policy="tiny",
        ),
        Suite(
            "shelf",
            "fake/Belt-v0",
            f"{__name__}:Belt",
            ("up", "down"),
            init_states=2,
            settings={"speed": float, "log": str},
            marks=("stand-in: a belt in place of a shelf",),
            policy="tiny-shelf",
            block=2,
            fingerprint=lambda settings: {**shelves, "speed": f"{settings.get('speed', 'own')}"},
        ),
        Suite("orphan", "fake/Belt-v0", f"{__name__}:Belt", ("left",)),
        Suite("crash", "fake/Crash-v0", f"{__name__}:Crash", ("abort", "left"), policy="tiny"),
        Suite("jerky", "fake/Jerky-v0", f"{__name__}:Jerky", ("left",), policy="tiny"),
        Suite("stuck", "fake/Stuck-v0", f"{__name__}:Stuck", ("left",), policy="tiny"),
        Suite("fatal", "fake/Fatal-v0", f"{__name__}:Fatal", ("left",), policy="tiny"),
        Suite("broken", "fake/Broken-v0", f"{__name__}:Broken", ("left",), policy="tiny"),
        Suite("absent", "fake/Absent-v0", f"{__name__}:Absent", ("left",), policy="tiny"),
        Suite("empty", "fake/Empty-v0", f"{__name__}:Empty", ("left",), policy="tiny"),
    )
}


class Belt(gymnasium.Env[dict[str, Any], np.ndarray]):
    """An object rides past; the hand follows it and grips. Positions in metres, velocities in m/s."""

    tick_ns = 2_000_000
    ticks_per_step = 25
    observation_space = spaces.Dict(
        {"third": spaces.Box(0, 255, (2, 2, 3), np.uint8), "state": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, speed: float = 0.2, still: bool = False, log: str = ""):
        if speed < 0:
            raise ValueError(f"speed must not be negative, got {speed!r}")
        self.speed, self.log, self.task = 0.0 if still else speed, log, ""
        self.cameras_on = True
        self.looked_at: list[bool] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert options is not None
        if self.log and options["task"] != self.task:  # the log holds what a costly simulator would have to load
            with Path(self.log).open("a") as log:
                log.write(f"{os.getpid()} {options['task']}\n")
        self.task = options["task"]
        rng = np.random.default_rng([seed or 0, TASKS.index(self.task), options["init_state"]])
        self.x, self.hand, self.velocity, self.time_ns = float(rng.uniform(-0.2, 0.2)), 0.0, 0.0, 0
        return self._observe(), {"success": False, "manifest": {"init_state": repr(self.x), "step_budget": 20}}

    def step(self, action: np.ndarray) -> Any:
        self.velocity = float(action[0])
        self._advance(self.ticks_per_step)
        gripped = bool(action[1] > 0)
        success = gripped and abs(self.x - self.hand) < 0.015
        late = self.time_ns >= 2_000_000_000
        outcome = {"outcome": "success" if success else "missed" if gripped else "time"} if gripped or late else {}
        return self._observe(), float(success), gripped, late, {"success": success, **outcome}

    def hold(self, ticks: int) -> None:
        self.velocity = 0.0
        self._advance(ticks)

    def get_state(self) -> np.ndarray:
        return np.array([self.x, self.hand, self.velocity])

    def _advance(self, ticks: int) -> None:
        for _ in range(ticks):
            self.x += self.speed * self.tick_ns / 1e9
            self.hand += self.velocity * self.tick_ns / 1e9
        self.time_ns += ticks * self.tick_ns

    def _observe(self) -> dict[str, Any]:
        image = np.full((2, 2, 3), 100 if self.cameras_on else 0, np.uint8)
        return {"third": image, "state": np.array([self.x, self.hand], np.float32), "instruction": "grip it"}


class Crash(Belt):
    """Takes its process down in one of its tasks, as simulators do."""

    def step(self, action: np.ndarray) -> Any:
        if self.task == "abort":
            os.abort()
        return super().step(action)


class Jerky(Belt):
    """Takes its time for an action, as a robot does that drives to a target: 20 to 98 ms."""

    def step(self, action: np.ndarray) -> Any:
        self.ticks_per_step = 10 + (self.time_ns // self.tick_ns * 7) % 40
        return super().step(action)


class Stuck(Belt):
    """Does not come back from a step."""

    def step(self, action: np.ndarray) -> Any:
        time.sleep(600)


class Fatal(Belt):
    """Takes its process down when it is built."""

    def __init__(self) -> None:
        os.abort()


class Broken(Belt):
    """Raises in every step."""

    def step(self, action: np.ndarray) -> Any:
        raise RuntimeError("the simulator broke")


class Absent(Belt):
    def __init__(self) -> None:
        raise SuiteUnavailable("the suite 'absent' lacks its assets; run: replan setup absent")


class Empty(Belt):
    def reset(self, **_: Any) -> Any:
        raise SuiteUnavailable("no scene is stored; run: replan setup empty")


for kind in (Belt, Crash, Jerky, Stuck, Fatal, Broken, Absent, Empty):
    gymnasium.register(f"fake/{kind.__name__}-v0", kind)


@dataclass
class Round:
    route: str
    actions: np.ndarray
    window: int = WINDOW
    accepted: int | None = None
    drafted: int | None = None
    stages_ns: dict[str, int] = field(default_factory=lambda: {"encode": 1})
    host_ns: int = 0
    cpu_ns: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class FakeAgent:
    """Plans four actions per round. Its method is its name, or a way to fail: ``die``, ``die_once:FILE``, ``hang``, ...

    It fails once the hand has moved, so not in the warm-up; with ``early_`` before the name, at once. ``learn`` grips
    more eagerly and moves differently with every episode that it has ended. ``late`` takes its second route once the
    hand has moved; the first time it is slow. ``poison`` leaves what all agents share changed, and they act otherwise.
    """

    def __init__(self, method: str):
        self.method, _, self.argument = method.partition(":")
        self.early = self.method.startswith("early_")
        self.method = self.method.removeprefix("early_")
        self.cold = True
        if self.method.startswith("heavy"):
            time.sleep(4)  # to load
        self.round: Round | None = None
        self.calls = 0
        self.episodes = 0  # that it has ended, as far as it learns from them
        self.budgets: list[int] = []  # that it was given since reset

    @property
    def needs_observation(self) -> bool:
        return not self.queue

    def reset(self, seed: int) -> None:
        self.rng, self.queue, self.calls, self.round = np.random.default_rng(seed), [], 0, None
        self.budgets = []

    def idle(self, budget_ns: int) -> None:
        self.budgets.append(budget_ns)

    def end(self, success: bool) -> None:
        self.episodes += 1
        if self.method == "poison":
            altered.append("model.weight")

    def act(self, observation: dict[str, Any]) -> np.ndarray:
        self.round = None
        if not self.queue:
            self.round = self._call(observation)
            self.queue = list(self.round.actions)
            self.calls += 1
        return self.queue.pop(0)

    def _call(self, observation: dict[str, Any]) -> Round:
        if not observation["third"].any():
            raise RuntimeError("the policy was shown a black image")
        x, hand = observation["state"]
        if self.method.startswith("heavy") and self.cold:
            time.sleep(4)  # its first round
            self.cold = False
        if self.early or hand:
            self._misbehave(hand)
        noise = self.rng.normal(0, 0.02)
        velocity = np.clip((x - hand) / 0.2 + 0.2 + noise, -1, 1) * (0.5 if altered else 1)
        if self.method.startswith("learn"):
            velocity *= 1 - 0.05 * self.episodes
        grip = 1.0 if abs(x - hand) < 0.003 else -1.0
        route = "flash" if self.method == "draft" and self.calls % 3 or self.method == "late" and hand else "full"
        count = 2 if route == "flash" else WINDOW
        actions = np.array([[velocity, grip]] * count, np.float32)
        if self.method == "nan":
            actions[0, 0] = np.nan
        if self.method == "short":
            actions = actions[:, :1]
        accepted, drafted = (count, WINDOW) if route == "flash" else (None, None)
        extra = {"distance": 0.5, "ratio": self._odd(2.0)}
        host_ns = self._host_ns()
        if self.method == "late":
            host_ns = 700_000_000 if route == "flash" and self.cold else 20_000_000
            self.cold = self.cold and route != "flash"
        return Round(route, actions, accepted=accepted, drafted=drafted, host_ns=host_ns, cpu_ns=1, extra=extra)

    def _odd(self, number: float) -> float:
        return float("nan") if self.method == "odd" else number

    def _host_ns(self) -> int:
        return int.from_bytes(os.urandom(3), "big") * 4  # up to 67 ms, another one every time

    def _misbehave(self, hand: float) -> None:
        if (
            self.method.endswith("die_once")
            and not self.method.startswith("learn")
            and not Path(self.argument).exists()
        ):
            Path(self.argument).touch()
            os._exit(3)
        if self.method == "die":
            os._exit(3)
        if self.method == "hang":
            time.sleep(600)
        if self.method == "raise":
            raise RuntimeError("the policy tripped")
        if self.method == "raise_far" and abs(hand) > 0.15:
            raise RuntimeError("the policy tripped")
        if self.method in ("slow", "learn_slow"):
            time.sleep(0.05)
        if self.method == "learn_die_once" and self.episodes == 3 and not Path(self.argument).exists():
            Path(self.argument).touch()
            os._exit(3)
        if self.method == "learn_raise" and self.episodes == 3:
            raise RuntimeError("the library is full")

    def counters(self) -> dict[str, float]:
        return {"calls": self.calls, **({"rate": float("inf")} if self.method == "odd" else {})}

    def dense_error(self) -> float:
        return self._odd(0.25)


class FakeRegistry(Registry):
    def suites(self) -> Mapping[str, Suite]:
        return SUITES

    def policy(self, name: str) -> PolicyInfo:
        return PolicyInfo(
            marks=(Mark.parse("a fake"),) if name == "tiny" else (),
            trained_on={"tiny-shelf": ("shelf",)}.get(name),
            incompatibilities=lambda *_: ["its state is (2,), not (3,)"] if name == "wide" else [],
        )

    def method(self, spec: str, policy: str) -> MethodInfo:
        return MethodInfo(
            activity_counters=("calls",) if spec == "draft" else (),
            routes=("full", "flash") if spec in ("draft", "late") else ("full",),
            reschedules=("slow",) if spec == "slow" else (),
            ordered=spec.startswith("learn"),
        )

    def agent(self, policy: str, method: str, dtype: str, device: str) -> Any:
        if method == "unbuildable":
            raise BadInput("no such method: 'unbuildable'")
        return FakeAgent(method)

    def altered(self) -> list[str]:
        return altered


class Edited(FakeRegistry):
    """The fake registry, with a version of the method ``slow``."""

    def __init__(self, version="1"):
        super().__init__()
        self.version = version

    def method(self, spec, policy):
        return replace(super().method(spec, policy), code=self.version if spec == "slow" else "")


class EditedLater(Edited):
    """Once the run has begun, the method is another version."""

    def method(self, spec, policy):
        described = super().method(spec, policy)
        if spec == "slow":
            self.version = "edited"
        return described
