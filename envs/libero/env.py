"""LIBERO as a Gymnasium environment."""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..arguments import choice, whole
from ..errors import SuiteUnavailable
from ..world import LETTERS, CellEnv
from .simulator import CONTROL_TICKS, TICK_NS, Simulator
from .tasks import CAMERAS, INIT_STATES, Task, array_digest, tasks_of
from .upstream import FIX
from .verify import task_problems, usable

PROTOCOLS = {  # step limits by suite, as these evaluators set them
    "openpi": {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400},
    "lerobot": {"libero_spatial": 280, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400},
}
CONTROLLERS = ("delta", "absolute")
SETTLE_STEPS = 10  # objects start a little above what they stand on
SETTLE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
OBSERVED_TICK = CONTROL_TICKS - 1  # of an action's 25 ticks, the one after which upstream's sensors and cameras look
SUCCESS_RULE = "all goal predicates of the task's BDDL file hold at the end of a control step"


class Libero(CellEnv):
    """A suite of LIBERO (Liu et al., 2023): a Panda arm follows an instruction on a table or in a kitchen.

    Observation: ``agentview`` and ``wrist`` uint8 [image_size, image_size, 3], both upright; ``state`` float32 [8] =
    gripper position xyz (m), its orientation as a rotation vector, positions of both fingers (m); ``instruction``.
    Action: float32 [7] at 20 Hz. With the controller ``delta`` in [-1, 1] = translation (1 is 50 mm),
    rotation vector (1 is 0.5 rad), both in the world frame and from where the gripper is, then the gripper (-1 opens,
    +1 closes). With ``absolute`` = position (m) and rotation vector of the grip site in the world frame, then the
    gripper. The reward is 1 on success and 0 before.

    The environment keeps the simulator of one task (2 GB, 4 s to build); cells are best run one task after the other.

    Args:
        suite: ``libero_spatial``, ``libero_object``, ``libero_goal``, ``libero_10`` or ``libero_90``.
        controller: ``delta`` or ``absolute``.
        protocol: Evaluator whose step limits count, ``openpi`` or ``lerobot``.
        image_size: Side of both images in pixels.
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: An argument is out of range.
        SuiteUnavailable: LIBERO or a part of it is not installed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    tick_ns = TICK_NS

    def __init__(
        self,
        suite: str,
        controller: str = "delta",
        protocol: str = "openpi",
        image_size: int = 256,
        render_mode: str | None = None,
    ) -> None:
        self._tasks = tasks_of(suite)
        super().__init__(tuple(self._tasks), init_states=INIT_STATES, render_mode=render_mode)
        self.controller = choice("controller", controller, CONTROLLERS)
        self.protocol = choice("protocol", protocol, PROTOCOLS)
        self.step_limit = PROTOCOLS[protocol][suite]
        # At most the height of the models' offscreen buffers.
        self.image_size = image_size = whole("image_size", image_size, 16, 480, "pixels")
        image = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                **{camera: image for camera in CAMERAS},
                "state": spaces.Box(-np.inf, np.inf, (8,), np.float32),
                "instruction": spaces.Text(max_length=128, charset=LETTERS),
            }
        )
        reach = {"delta": [1.0] * 7, "absolute": [2.0] * 3 + [2 * np.pi] * 3 + [1.0]}[controller]
        self._reach = np.array(reach, np.float32)
        self.action_space = spaces.Box(-self._reach, self._reach)
        self.sampled_starts = False  # True: starts are sampled from the task's regions, as training does
        self._upstream = usable()
        self._simulator: Simulator | None = None
        self._init_states = np.empty((0, 0))
        self._expert: Any = None
        self._steps = 0

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        simulator = self._build(self._tasks[task])
        start = None if self.sampled_starts else self._init_states[init_state]
        simulator.reset(start, seed)
        for _ in range(SETTLE_STEPS - 1):
            simulator.advance(CONTROL_TICKS, SETTLE)
        self._execute(simulator, SETTLE)
        simulator.refresh()
        self._steps, self._expert = 0, None
        return {
            "init_state": "drawn from the seed" if start is None else array_digest(start),
            "fixtures": _fixtures_digest(self._tasks[task], simulator),
            "instruction": self._tasks[task].language,
            "step_budget": f"{self.step_limit} control steps ({self.protocol})",
            "success_rule": SUCCESS_RULE,
            "action": f"{self.controller}: {simulator.action_scale()}; {CONTROL_TICKS * TICK_NS / 1e6:g} ms",
            "settling": f"{SETTLE_STEPS} control steps of {SETTLE.tolist()}",
        }

    def _act(self, action: np.ndarray) -> str | None:
        simulator = self._running
        self._execute(simulator, np.clip(action, -self._reach, self._reach), absolute=self.controller == "absolute")
        self._steps += 1
        self.time_ns += CONTROL_TICKS * TICK_NS
        success = simulator.succeeded()
        simulator.refresh()
        if success:
            return "success"
        return "time" if self._steps >= self.step_limit else None

    def _solved(self) -> bool:
        return self._running.holds()

    def _observe(self) -> dict[str, Any]:
        return self._observation

    def _advance(self, ticks: int) -> None:
        self._running.advance(ticks)
        self._running.refresh()

    def _state(self) -> np.ndarray:
        return self._running.state()

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns the actions float32 [horizon, 7] that the scripted expert would take; it sees the true state.

        It decides each action in the state that the one before leads to, so further actions are found by simulating
        ahead, which is undone.

        Raises:
            ValueError: The controller is ``absolute`` (the expert acts in differences), or the horizon is below 1.
            NotImplementedError: The task has a goal that the expert has no skill for.
        """
        if horizon < 1:
            raise ValueError(f"the horizon must be at least 1 action, got {horizon}")
        if self.controller != "delta":
            raise ValueError(f"the expert gives differences, and the controller takes {self.controller!r} poses")
        simulator = self._running
        if self._expert is None:
            from .expert import make_expert

            self._expert = make_expert(simulator.problem)
        actions = [self._expert.act().astype(np.float32)]  # as the action space has them
        if horizon > 1:
            memo = self._expert.snapshot()
            with simulator.rolled_back():
                for _ in range(horizon - 1):
                    simulator.advance(CONTROL_TICKS, actions[-1])
                    simulator.refresh()
                    actions.append(self._expert.act().astype(np.float32))
            self._expert.restore(memo)
        return np.stack(actions)

    def _render(self) -> np.ndarray:
        return self._running.render("agentview", self.image_size)

    def _close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None

    @property
    def _running(self) -> Simulator:
        if self._simulator is None:
            raise gymnasium.error.ResetNeeded("call reset() before the environment is used")
        return self._simulator

    def _build(self, task: Task) -> Simulator:
        """Returns the task's simulator. It replaces the last one, because each takes 2 GB."""
        if self._simulator is None or self._simulator.task != task:
            self._close()
            if problems := task_problems(self._upstream, task):
                raise SuiteUnavailable(f"{problems[0]}; {FIX}")
            self._init_states = self._upstream.init_states(task)
            self._simulator = Simulator(self._upstream, task)
        return self._simulator

    def _execute(self, simulator: Simulator, action: np.ndarray, *, absolute: bool = False) -> None:
        """Executes an action, and observes a tick before its end, as upstream's sensors do."""
        simulator.advance(OBSERVED_TICK, action, absolute=absolute)
        size = self.image_size
        observation: dict[str, Any] = {
            camera: simulator.render(camera, size) if self.cameras_on else np.zeros((size, size, 3), np.uint8)
            for camera in CAMERAS
        }
        observation["state"] = simulator.proprioception().astype(np.float32)
        observation["instruction"] = simulator.task.language
        simulator.advance(CONTROL_TICKS - OBSERVED_TICK)
        self._observation = observation


def _fixtures_digest(task: Task, simulator: Simulator) -> str:
    """Hashes what the standard states don't hold. Rounded, because the last digits differ between processors."""
    digest = hashlib.sha256(task.bddl.encode())
    for values in simulator.fixtures():
        digest.update((np.round(values.astype(np.float64), 6) + 0.0).tobytes())
    return digest.hexdigest()
