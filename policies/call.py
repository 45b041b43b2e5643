"""A round from observation to action chunk: the one function that every method hooks into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .model import FlowModel, Inputs, Prefix
from .policy import Policy
from .round import Call, Proposal, Round, Stopwatch
from .seams import Methods


@torch.inference_mode()
def call_policy(
    policy: Policy,
    methods: Methods,
    observation: Mapping[str, Any],
    noise: Tensor,
    control_step: int = 0,
    executed: np.ndarray | None = None,
    window: int | None = None,
) -> Round:
    """Runs one round: ask ROUND, encode, prefill, denoise, decode.

    Args:
        policy: The dense policy.
        methods: Methods attached to it; ``Methods()`` is dense.
        observation: The environment's observation.
        noise: [1, H, A] starting noise.
        control_step: Control steps executed so far.
        executed: [n, A] actions executed since the last round; None for none.
        window: Actions to execute before the next round; the policy's own if None.
    """
    model = policy.model
    watch = Stopwatch(model.device)
    stages = methods.stages or model.stages()
    inputs = policy.processor.inputs(observation).to(model.device, model.dtype)
    if executed is None:
        executed = np.zeros((0, model.action_dim), np.float32)
    window = policy.processor.replan if window is None else window
    instruction = str(observation.get("instruction", ""))
    call = Call(inputs, instruction, noise, control_step, executed, window, stages, watch)
    methods.look(call)
    proposal = methods.propose(call)
    if proposal is not None:
        _check(proposal, noise)
    if proposal is not None and proposal.length > 0:
        chunk, length = proposal.chunk, min(proposal.length, window)
    else:
        chunk, length = full_path(model, methods, call), window
        methods.observe_full(call)
    route = methods.declared(proposal.route) if proposal is not None else methods.route(call)
    actions = policy.processor.actions(chunk[0, :length], observation["state"])
    host_ns, cpu_ns = watch.read()
    return Round(
        route=route,
        actions=actions,
        window=window,
        accepted=None if proposal is None else proposal.accepted,
        drafted=None if proposal is None else proposal.drafted,
        stages_ns=watch.stages_ns,
        host_ns=host_ns,
        cpu_ns=cpu_ns,
        extra=call.extra,
        call=call,
        chunk=chunk,
    )


def _check(proposal: Proposal, noise: Tensor) -> None:
    """Refuses a proposal that no round can execute or account for.

    Raises:
        RuntimeError: The method has a fault: it is not the policy that failed.
    """
    drafted, accepted = proposal.drafted, proposal.accepted
    counted = accepted is None or (drafted is not None and 0 <= accepted <= drafted <= noise.shape[1])
    if proposal.chunk.shape != noise.shape or proposal.length < 0 or not counted:
        raise RuntimeError(
            f"the proposal of route {proposal.route!r} has a chunk {list(proposal.chunk.shape)} (expected "
            f"{list(noise.shape)}), length {proposal.length}, accepted {accepted} of drafted {drafted}"
        )


def full_path(model: FlowModel, methods: Methods, call: Call) -> Tensor:
    """Prefills and denoises; sets what ``call`` has after the full path and returns the chunk [1, H, A].

    ``dense`` below is the reference that this function equals, bit for bit, where no method is attached.
    """
    flow, run = model.flow, call.stages
    call.context = methods.context(call)
    if call.context is None:
        with call.stage("prefill"):
            methods.prefill_ops.start(call)
            call.context = run.prefill(call.prefix, methods.prefill_ops)
    with call.stage("denoise"):
        context = run.condition(call.context, call.inputs)
        schedule, start = methods.schedule(call, flow), methods.start(call, flow)
        x = call.noise
        if start is not None:
            x, schedule = start.x, schedule.starting_at(start.time)
        call.schedule = schedule
        times, prediction = schedule.times, x
        methods.step_ops.start(call)
        for step, computed in enumerate(schedule.computed):
            if step in schedule.given:
                prediction = schedule.given[step]
            elif computed:
                methods.step_ops.at(step)
                prediction = run.step(x, times[step], context, methods.step_ops)
            used = methods.prediction(call, x, times[step], prediction)
            x = flow.advance(x, used, call.noise, times[step], times[step + 1])
    call.chunk = x
    return x


def dense(model: FlowModel, prefix: Prefix, inputs: Inputs, noise: Tensor) -> Tensor:
    """Returns the dense policy's chunks [B, H, A], normalised: the full path without seams, backend or stopwatch."""
    context = model.condition(model.prefill(prefix), inputs)
    schedule, x = model.flow.schedule(), noise
    for time, next_time in zip(schedule.times[:-1], schedule.times[1:], strict=True):
        x = model.flow.advance(x, model.step(x, time, context), noise, time, next_time)
    return x


@torch.inference_mode()
def dense_chunk(policy: Policy, observation: Mapping[str, Any], noise: Tensor) -> Tensor:
    """Returns the dense policy's answer to an observation under a noise: [1, H, A], normalised.

    It reads nothing of a round, so that no method is compared with what it made of its own inputs, encoding or noise.
    """
    model = policy.model
    inputs = policy.processor.inputs(observation).to(model.device, model.dtype)
    return dense(model, model.encode(inputs), inputs, noise)
