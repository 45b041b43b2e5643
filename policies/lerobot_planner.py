"""A policy object of lerobot as a planner. lerobot itself is not imported: what counts is the interface.

A package that offers one in the entry-point group ``replan.policies`` (docs/extending.md) needs lerobot installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .processing import camera_image, checked_instruction, entry

STATE = "observation.state"
TASK = "task"


class LeRobotPlanner:
    """Asks a ``PreTrainedPolicy`` of lerobot, as ``lerobot-eval`` does.

    A policy that sees only the present observation returns a chunk (``predict_action_chunk``), of which
    ``config.n_action_steps`` are executed. One that keeps a history (``config.n_obs_steps`` above 1) or predicts no
    chunks returns one action per round (``select_action``).

    Args:
        policy: The policy.
        preprocessor: Its pipeline from a batch to what the model reads; ``make_pre_post_processors`` returns both.
        postprocessor: Its pipeline from model actions [1, A] to the environment's.
        cameras: Image key of the policy, such as ``observation.images.image`` -> observation key of the camera.
        mirror: Whether the policy sees the images mirrored, left to right, as lerobot's LIBERO policies do.
    """

    def __init__(
        self,
        policy: Any,
        preprocessor: Callable[[dict[str, Any]], dict[str, Any]],
        postprocessor: Callable[[Tensor], Tensor],
        cameras: Mapping[str, str],
        mirror: bool = False,
    ) -> None:
        self._policy, self._cameras, self._mirror = policy, dict(cameras), mirror
        self._preprocessor, self._postprocessor = preprocessor, postprocessor
        config = policy.config
        history = getattr(config, "n_obs_steps", 1) > 1
        self._steps = 1 if history or not hasattr(policy, "predict_action_chunk") else int(config.n_action_steps)
        self._seed, self._calls = 0, 0

    def reset(self, seed: int) -> None:
        """Begins an episode."""
        self._seed, self._calls = seed, 0
        for each in (self._policy, self._preprocessor, self._postprocessor):
            getattr(each, "reset", lambda: None)()

    def plan(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns the actions until the next call, float32 [n, A].

        Raises:
            ObservationError: The observation lacks a camera, a state or an instruction.
        """
        batch = self._preprocessor(self._batch(observation))
        # lerobot's policies sample from the global generator; it is put back as it was.
        words = np.random.SeedSequence([self._seed, self._calls]).generate_state(1, np.uint64)
        self._calls += 1
        with torch.random.fork_rng(), torch.inference_mode():  # noqa: TID251
            torch.manual_seed(int(words[0]) >> 1)  # noqa: TID251 - torch takes 63-bit seeds
            if self._steps > 1:
                chunk = self._policy.predict_action_chunk(batch)[:, : self._steps]
            else:
                chunk = self._policy.select_action(batch)[:, None]
            actions = [self._postprocessor(action) for action in chunk.unbind(1)]
        return torch.cat(actions).float().cpu().numpy()

    def _batch(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for key, camera in self._cameras.items():
            image = camera_image(observation, camera, 0)
            image = image[:, ::-1] if self._mirror else image
            batch[key] = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255
        batch[STATE] = torch.from_numpy(np.array(entry(observation, "state"), np.float32))[None]
        batch[TASK] = [checked_instruction(observation)]
        return batch
