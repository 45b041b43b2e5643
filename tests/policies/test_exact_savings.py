"""What is computed once, or in fewer operations, equals the plain arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from replan.policies.gemma import RMSNorm, rope_table, rotary, rotate
from replan.policies.norms import EPSILON, rms_norm
from replan.policies.untrained import observations, untrained


@pytest.fixture(scope="module", params=["pi0", "pi0.5"])
def conditioned(request, tmp_path_factory):
    policy = untrained(request.param, "tiny", tmp_path_factory.mktemp("policy"), words=5)
    model = policy.model
    with torch.inference_mode():
        inputs = policy.processor.inputs(observations(policy, 1)[0])
        return model, model.condition(model.prefill(model.encode(inputs)), inputs)


@torch.inference_mode()
def test_steps_that_write_into_the_rooms_of_a_context_equal_steps_that_concatenate(conditioned):
    model, context = conditioned
    plain = replace(context, room=())
    kept = [tensor.clone() for tensor in (*context.keys, *context.values)]
    x = torch.randn(1, *model.noise_shape)
    for time in (1.0, 0.5, 1.0):  # the first again, after another one has written
        assert torch.equal(model.step(x, time, context), model.step(x, time, plain))
    assert all(torch.equal(a, b) for a, b in zip(kept, (*context.keys, *context.values), strict=True))
    assert all(
        torch.equal(k[:, : context.keys[0].shape[1]], own)
        for (k, _), own in zip(context.room, context.keys, strict=True)
    )


@torch.inference_mode()
def test_branches_of_a_context_take_steps_as_it_does(conditioned):
    model, context = conditioned
    x = torch.randn(3, *model.noise_shape)
    together = model.step(x, (0.9, 0.9, 0.9), context.expand(3))
    apart = torch.cat([model.step(each[None], 0.9, context) for each in x])
    assert torch.allclose(together, apart, atol=1e-5)


@torch.inference_mode()
def test_what_a_flow_time_adds_is_the_same_kept_or_not(conditioned):
    model, context = conditioned
    x = torch.randn(1, *model.noise_shape)
    first, kept = (model.step(x, 0.25, context) for _ in range(2))
    assert torch.equal(first, kept)
    assert torch.equal(first, model.step(x, torch.tensor([0.25]), context))
    assert not torch.equal(first, model.step(x, 0.5, context))


@pytest.mark.parametrize("kind", ["pi0", "pi0.5"])
def test_gradients_pass_from_a_step_through_the_context(kind, tmp_path):
    policy = untrained(kind, "tiny", tmp_path, words=5)
    model = policy.model.requires_grad_(True)
    inputs = policy.processor.inputs(observations(policy, 1)[0])
    context = model.condition(model.prefill(model.encode(inputs)), inputs)
    model.step(torch.randn(1, *model.noise_shape), torch.tensor([0.5]), context).square().sum().backward()
    assert model.vlm[0].qkv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_the_root_mean_square_norm_also_of_strided_and_zero_rows(dtype):
    x = torch.randn(2, 5, 3, 48).to(dtype)[:, :, 1]
    x[0, 0] = 0
    x[0, 1] *= 1e-4  # where the epsilon shows
    x[0, 2] *= 1e4
    plain = F.rms_norm(x.float(), (48,), None, EPSILON)
    assert rms_norm(x).dtype == torch.float32
    assert torch.allclose(rms_norm(x), plain, rtol=1e-6, atol=1e-7)
    norm = RMSNorm(48)
    torch.nn.init.normal_(norm.weight)
    scaled = F.rms_norm(x.float(), (48,), 1 + norm.weight, EPSILON).to(dtype)
    assert torch.allclose(norm(x), scaled, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=1e-6)


def test_the_norm_has_the_gradient_of_the_plain_one():
    x = torch.randn(3, 8, dtype=torch.float32, requires_grad=True)
    other, weights = x.detach().clone().requires_grad_(), torch.randn(3, 8)
    (rms_norm(x) * weights).sum().backward()
    (F.rms_norm(other, (8,), None, EPSILON) * weights).sum().backward()
    assert x.grad is not None and other.grad is not None
    assert torch.allclose(x.grad, other.grad, atol=1e-6)


def test_whole_heads_turn_as_their_halves_do():
    positions, x = torch.tensor([[0, 3, 7]]), torch.randn(1, 3, 5, 16)
    cos, sin = rope_table(positions, 16, x.dtype)
    a, b = x.chunk(2, -1)
    plain = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    assert torch.allclose(rotate(x, rotary(positions, 16, x.dtype)), plain, atol=1e-6)
