"""A policy call from observation to action chunk: the one function that every method hooks into."""

from __future__ import annotations

import time  # noqa: TID251 - measuring is this file's job
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checkpoint
from .pi0 import Context, Inputs, Pi0, Pi0Config, Prefix
from .processor import Processor
from .seams import Method, Seam, compose

OFFERED = frozenset({Seam.ROUND, Seam.SCHEDULE})  # seams that call_policy asks methods about
BUNDLED = Path(__file__).parent / "checkpoints"


@dataclass(frozen=True)
class Policy:
    """Weights and the conventions that belong to them.

    Attributes:
        name: Name in results.
        path: Checkpoint it came from; drafts are looked for beside it.
        model: The network, in evaluation mode.
        processor: Observation and action conventions.
        card: How it was made; ``card["marks"]`` goes on every row.
    """

    name: str
    path: Path
    model: Pi0
    processor: Processor
    card: dict[str, Any]


def policy_path(name: str | Path) -> Path:
    """Returns the checkpoint of a bundled policy, or the path itself.

    Raises:
        CheckpointError: Neither a bundled name nor a file.
    """
    bundled = BUNDLED / f"{name}.safetensors"
    if bundled.is_file():
        return bundled
    if Path(name).is_file():
        return Path(name)
    raise checkpoint.CheckpointError(
        f"unknown policy {str(name)!r}: no such file, and bundled are {', '.join(bundled_policies()) or 'none'}"
    )


def bundled_policies() -> list[str]:
    """Returns the names of the policies that come with the package."""
    return sorted(path.stem for path in BUNDLED.glob("*.safetensors") if "." not in path.stem)


def load_policy(name: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Policy:
    """Loads a bundled policy by name, or any pi0 checkpoint of ours by path.

    Raises:
        CheckpointError: The file is missing, foreign, damaged, or does not fit its own configuration.
    """
    path = policy_path(name)
    header = checkpoint.read_header(path)
    if header.kind != "pi0":
        raise checkpoint.CheckpointError(f"{path} holds a {header.kind!r}, not a policy")
    model = Pi0(checkpoint.from_plain(Pi0Config, header.config))
    checkpoint.load_weights(path, model)
    model.requires_grad_(False).eval().to(device, dtype)
    try:
        processor = Processor.from_plain(header.processor)
    except ValueError as error:
        raise checkpoint.CheckpointError(f"{path}: {error}") from error
    found = (len(processor.state_mean), len(processor.action_mean), processor.image_size)
    wanted = (model.config.state_dim, model.config.action_dim, model.config.image_size)
    if found != wanted:
        raise checkpoint.CheckpointError(f"{path}: state, action and image sizes are {found}, the model has {wanted}")
    return Policy(path.stem, path, model, processor, header.card)


@dataclass(frozen=True)
class Proposal:
    """A chunk that a method offers in place of the full path's.

    Attributes:
        chunk: [1, H, A], normalised.
        length: Leading actions to execute; 0 turns the offer into a fallback to the full path in this very round.
        accepted: Leading actions that passed verification.
        drafted: Positions of the draft that were verified; the replan window if None.
    """

    chunk: Tensor
    length: int
    accepted: int
    drafted: int | None = None


@dataclass
class Call:
    """A policy call in flight: what hooks see.

    Attributes:
        inputs: Model inputs of batch 1.
        prefix: Prefix embeddings of this round's observation.
        noise: [1, H, A], the same for every method at the same control step of an episode.
        control_step: Control steps executed so far in the episode.
        last_gripper: [G] normalised gripper commands executed last, or None at the start.
        window: Replan window in actions.
        context: After the full path: the prefix's keys and values, without the state.
        chunk: After the full path: [1, H, A], normalised.
        stages_ns: Wall time of each stage so far.
        extra: Numbers that a method reports for this round.
    """

    inputs: Inputs
    prefix: Prefix
    noise: Tensor
    control_step: int
    last_gripper: Tensor | None
    window: int
    context: Context | None = None
    chunk: Tensor | None = None
    stages_ns: dict[str, int] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the wall time of the block to a stage; waits for the accelerator on both sides."""
        _wait(self.noise.device)
        start = time.perf_counter_ns()
        yield
        _wait(self.noise.device)
        self.stages_ns[name] = self.stages_ns.get(name, 0) + time.perf_counter_ns() - start


@dataclass(frozen=True)
class Round:
    """What a policy call came to.

    Attributes:
        route: ``full``, ``flash`` (the draft was accepted) or ``fallback`` (a draft was tried, and the full path ran
            after it).
        actions: [n, A] float32 in the environment's convention, to be executed before the next call; n <= window.
        window: Replan window in actions.
        accepted: Accepted prefix of the draft in actions; None where none was tried.
        drafted: Positions of the draft that were verified; None where none was tried.
        stages_ns: Wall time of each stage.
        host_ns: Wall time from observation to actions.
        cpu_ns: Processor time in the same span.
        extra: Numbers that the method reports.
        call: The call itself.
        chunk: [1, H, A] normalised, of which ``actions`` is a prefix.
    """

    route: str
    actions: np.ndarray
    window: int
    accepted: int | None
    drafted: int | None
    stages_ns: dict[str, int]
    host_ns: int
    cpu_ns: int
    extra: dict[str, float]
    call: Call
    chunk: Tensor


@torch.inference_mode()
def call_policy(
    policy: Policy,
    methods: Sequence[Method],
    observation: Mapping[str, Any],
    noise: Tensor,
    control_step: int = 0,
    last_gripper: Tensor | None = None,
    window: int | None = None,
) -> Round:
    """Runs one round: encode, ask ROUND, prefill, walk SCHEDULE, decode.

    Args:
        policy: The dense policy.
        methods: Methods attached to it, with disjoint claims.
        observation: The environment's observation.
        noise: [1, H, A] starting noise.
        control_step: Control steps executed so far.
        last_gripper: [G] normalised gripper commands executed last.
        window: Actions to execute before the next call; the policy's own if None.
    """
    start, cpu_start = time.perf_counter_ns(), time.process_time_ns()
    owner, model = compose(methods), policy.model
    weight = model.action_in.weight
    inputs = policy.processor.inputs(observation).to(weight.device, weight.dtype)
    window = policy.processor.replan if window is None else window
    call = Call(inputs, Prefix(noise, None, 0), noise, control_step, last_gripper, window)
    with call.stage("encode"):
        call.prefix = model.encode(inputs)
    proposal = owner[Seam.ROUND].propose(call) if Seam.ROUND in owner else None
    if proposal is not None and proposal.length > 0:
        route, chunk, length = "flash", proposal.chunk, min(proposal.length, window)
    else:
        route, length = "full" if proposal is None else "fallback", window
        chunk = full_path(policy, call, owner.get(Seam.SCHEDULE))
        for method in methods:
            method.observe_full(call)
    actions = policy.processor.actions(chunk[0, :length], observation["state"])
    return Round(
        route=route,
        actions=actions,
        window=window,
        accepted=None if proposal is None else proposal.accepted,
        drafted=None if proposal is None else window if proposal.drafted is None else proposal.drafted,
        stages_ns=call.stages_ns,
        host_ns=time.perf_counter_ns() - start,
        cpu_ns=time.process_time_ns() - cpu_start,
        extra=call.extra,
        call=call,
        chunk=chunk,
    )


def full_path(policy: Policy, call: Call, scheduler: Method | None = None) -> Tensor:
    """Prefills and denoises; sets ``call.context`` and ``call.chunk`` and returns the chunk.

    Args:
        policy: The dense policy.
        call: The round, encoded.
        scheduler: Method that owns the SCHEDULE seam; None is dense.
    """
    model = policy.model
    with call.stage("prefill"):
        call.context = model.prefill(call.prefix)
    with call.stage("denoise"):
        context = model.see_state(call.context, call.inputs.state)
        schedule = scheduler.schedule(model.flow) if scheduler else model.flow.schedule()
        x, prediction = call.noise, call.noise
        for step, computed in enumerate(schedule.computed):
            if computed:
                prediction = model.step(x, schedule.times[step], context)
            x = model.flow.advance(x, prediction, schedule.times[step], schedule.times[step + 1])
    call.chunk = x
    return x


@torch.inference_mode()
def dense_chunk(policy: Policy, round_: Round) -> Tensor:
    """Returns what the dense policy answers to the observation and noise of a round: [1, H, A], normalised."""
    call = round_.call
    return full_path(policy, Call(call.inputs, call.prefix, call.noise, 0, None, call.window))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
