"""The method `triton` against the dense policy, at a tiny size: run by test_kernels.py in a process of its own.

TRITON_INTERPRET=1 pytest tests/kernels/backend.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import bfloat16
import pytest
import torch
from replan import accel
from replan.accel.fused import Fused
from replan.kernels import accept
from replan.policies import pi0, pi05
from replan.policies.agent import ChunkAgent
from replan.policies.model import DENSE, KVContext

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SIZES = {
    "vision_depth": 1,
    "depth": 2,
    "width": 64,
    "mlp": 96,
    "expert_width": 48,
    "expert_mlp": 80,
    "heads": 2,
    "horizon": 5,
}
MODELS = {
    "pi0": lambda: pi0.Pi0(replace(pi0.TINY, **SIZES)),
    "pi0.5": lambda: pi05.Pi05(replace(pi05.TINY, **SIZES)),
}
if INTERPRETED:
    bfloat16.install()


def context_of(model, batch: int, masked: bool) -> KVContext:
    generator = torch.Generator().manual_seed(1)
    config, past = model.config, 21
    keys, values = (
        [torch.randn(batch, past, config.head_dim, generator=generator).to(DEVICE, model.dtype) for _ in model.expert]
        for _ in "kv"
    )
    mask = (torch.rand(batch, past, generator=generator) > 0.3).to(DEVICE) if masked else None
    position = torch.full((batch,), past, device=DEVICE) if mask is None else mask.sum(1)
    return KVContext(tuple(keys), tuple(values), position, mask)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("pi0", torch.float32), ("pi0.5", torch.float32), ("pi0.5", torch.bfloat16)], ids=str
)
@torch.inference_mode()
def test_steps_are_those_of_the_model(kind, dtype, randomised):
    model = randomised(MODELS[kind]()).to(DEVICE, dtype)
    fused = Fused(model)
    x = torch.randn(2, *model.noise_shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    both, one = context_of(model, 2, masked=True), context_of(model, 1, masked=False)
    cases = [
        (x, 0.7, both),
        (x[:1], 0.3, one),
        (x[:1], 0.7, one),  # from the tables of the first
        (x, (0.1, 0.05), one.expand(2)),  # FLASH's verification
        (x, torch.tensor([0.1, 0.05], device=DEVICE), one.expand(2)),
    ]
    for points, time, context in cases:
        expected, found = model.step(points, time, context), fused.step(points, time, context, DENSE)
        assert found.dtype == torch.float32
        assert (found - expected).norm() < TOLERANCE[dtype] * expected.norm()
    assert fused.layers == len(cases) * model.config.depth


@pytest.mark.parametrize("spec", ["flash:delta=99:gripper=false", "flash:delta=0"])
def test_flash_judges_in_one_kernel(policy, observation, spec, monkeypatch):
    """One launch per verification, whose decision is that of PyTorch; nothing else of it is read."""
    (made,) = accel.parse("flash")
    made.make_files(policy)
    spec, launched, run = f"few_step:steps=1+{spec}", [], accept.run
    monkeypatch.setattr(
        accept, "run", lambda kernel, *others, **more: launched.append(0) or run(kernel, *others, **more)
    )
    expected, plain = play(policy, observation, spec)
    assert not launched
    found, agent = play(policy, observation, f"{spec}+triton")
    assert len(launched) == 1 and agent.counters()["drafted"] == 1
    assert agent.round.route == plain.round.route == ("flash" if "99" in spec else "fallback")
    assert (agent.round.accepted, len(agent.round.actions)) == (plain.round.accepted, len(plain.round.actions))
    assert agent.round.extra["distance"] == pytest.approx(plain.round.extra["distance"], rel=1e-4)
    assert (found - expected).norm() < 1e-4 * expected.norm()


def play(policy, observation, spec: str, rounds: int = 2):
    """Returns the chunks of rounds whose observations differ little, and the agent."""
    agent = ChunkAgent(policy, accel.parse(spec))
    agent.reset(0)
    chunks = []
    for number in range(rounds):
        while chunks and not agent.needs_observation:
            agent.act({})
        agent.act({**observation, "state": observation["state"] + 0.01 * number})
        chunks.append(agent.round.chunk)
    return torch.cat(chunks), agent


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("few_step:steps=1", 1),
        ("few_step:steps=2+context_cache:ratio=0.3+action_cache:ratio=0.4", 2),
        ("few_step:steps=1+wam_cache:attention=0.2", 2),
    ],
)
def test_methods_do_with_kernels_what_they_do_without(policy, observation, spec, rounds):
    expected, plain = play(policy, observation, spec, rounds)
    found, agent = play(policy, observation, f"{spec}+triton", rounds)
    assert (found - expected).norm() < 1e-4 * expected.norm()
    counted = agent.counters()
    assert counted.pop("kernel_layers") > 0
    assert counted == plain.counters()
