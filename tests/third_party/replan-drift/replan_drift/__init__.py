"""A policy family of another author's package: a linear map from the state to a chunk, as a flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from replan.policies import checkpoint, processing
from replan.policies.families import Family
from replan.policies.flow import FlowSpec
from replan.policies.model import DENSE, FlowModel, Inputs, Ops, Prefix
from torch import Tensor, nn

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    """Dimensions; ``steps`` is the number of denoising steps."""

    state_dim: int = 11
    action_dim: int = 7
    horizon: int = 8
    steps: int = 4

    def __post_init__(self) -> None:
        checkpoint.check_sizes(asdict(self), most=1000)


class Context(NamedTuple):
    """The chunk [B, H, A] that the state leads to; nothing of an image is used."""

    chunk: Tensor | None = None

    def expand(self, branches: int) -> Context:
        return Context(None if self.chunk is None else self.chunk.repeat(branches, 1, 1))


class Drift(FlowModel):
    """Predicts the clean chunk, whatever the noise. It offers no seam inside."""

    context = Context

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.horizon, self.action_dim = config, config.horizon, config.action_dim
        self.flow = FlowSpec(prediction="action", steps=config.steps, sampler="renoise")
        self.head = nn.Linear(config.state_dim, config.horizon * config.action_dim)

    def encode(self, inputs: Inputs) -> Prefix:
        return Prefix(inputs.state[:, None], None, 0)

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> Context:
        return Context()

    def condition(self, context: Context, inputs: Inputs) -> Context:
        return Context(self.head(inputs.state).unflatten(-1, self.noise_shape))

    def step(self, x: Tensor, time: Tensor | float, context: Context, ops: Ops = DENSE) -> Tensor:
        assert context.chunk is not None
        return context.chunk.float()


@dataclass(frozen=True)
class Processor:
    """Conventions: the state as it is, actions in [-1, 1] with the gripper last."""

    state_dim: int
    action_dim: int
    replan: int

    cameras = ()

    @property
    def gripper(self) -> tuple[int, ...]:
        return (self.action_dim - 1,)

    @property
    def continuous(self) -> list[int]:
        return list(range(self.action_dim - 1))

    def check(self, config: Config) -> None:
        if (self.state_dim, self.action_dim) != (config.state_dim, config.action_dim) or self.replan > config.horizon:
            raise ValueError(f"{self} does not fit {config}")

    def incompatibilities(self, observations: Any, actions: Any) -> list[str]:
        return processing.incompatibilities(observations, actions, self.cameras, self.state_dim, self.action_dim)

    def tokenize(self, instruction: str) -> list[int]:
        return []

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        state = torch.from_numpy(processing.checked_state(observation, self.state_dim))[None]
        nothing = torch.zeros(1, 0)
        return Inputs(nothing, nothing.long(), nothing.bool(), state)

    def normalise_state(self, state: Tensor) -> Tensor:
        return state

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        return actions

    def normalise_gripper(self, action: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(action, np.float32))[list(self.gripper)]

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        return chunk.float().cpu().clamp(-1, 1).numpy()


FAMILY = Family("drift", Config, Drift, Processor, policies=HERE)


def make(path: Path, seed: int = 0) -> None:
    """Writes an untrained policy."""
    config, generator = Config(), torch.Generator().manual_seed(seed)
    model = Drift(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    header = checkpoint.Header("drift", asdict(config), asdict(Processor(11, 7, 5)), {"marks": ["untrained weights"]})
    checkpoint.save(path, header, model)
