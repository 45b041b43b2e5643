"""pi0's exact savings really are exact, and its masks keep apart what must not see each other."""

from __future__ import annotations

import pytest
import torch
from replan.policies.gemma import RMSNorm
from replan.policies.model import Inputs, Ops
from replan.policies.pi0 import PI0, TINY, Pi0


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.tensor([[6, 8, 4, 5, 8, 7, 1, 0]])
    return Inputs(
        torch.rand((1, 2, 3, 64, 64), generator=generator) * 2 - 1,
        tokens,
        tokens != 0,
        torch.randn((1, 11), generator=generator),
    )


@pytest.fixture
def x():
    return torch.randn((1, 16, 7), generator=torch.Generator().manual_seed(2))


def velocity(model, inputs, x, *, drop=True, time=0.7):
    with torch.inference_mode():
        context = model.prefill(model.encode(inputs, drop=drop))
        return model.step(x, time, model.condition(context, inputs))


def test_dropping_masked_tokens_changes_nothing(policy, inputs, x):
    masked, dropped = (velocity(policy.model, inputs, x, drop=drop) for drop in (False, True))
    torch.testing.assert_close(dropped, masked, rtol=1e-5, atol=1e-5)
    assert policy.model.encode(inputs).embeddings.shape[1] == 2 * 64 + 7
    assert policy.model.encode(inputs, drop=False).embeddings.shape[1] == 2 * 64 + 8


def test_what_a_masked_token_or_camera_holds_changes_nothing(policy, inputs, x):
    masked = torch.tensor([[True, False]])
    base = Inputs(inputs.images, inputs.tokens, inputs.token_mask, inputs.state, masked)
    other_images, other_tokens = inputs.images.clone(), inputs.tokens.clone()
    other_images[:, 1] = 0.3
    other_tokens[:, -1] = 5
    other = Inputs(other_images, other_tokens, inputs.token_mask, inputs.state, masked)
    for drop in (True, False):
        torch.testing.assert_close(
            velocity(policy.model, other, x, drop=drop), velocity(policy.model, base, x, drop=drop), rtol=0, atol=0
        )
    other_images[:, 0] = 0.3
    assert not torch.allclose(velocity(policy.model, other, x), velocity(policy.model, base, x), atol=1e-3)


def test_a_batch_of_different_instructions_equals_its_rows(policy, inputs, x):
    tokens = torch.cat([inputs.tokens, torch.tensor([[6, 8, 9, 3, 5, 8, 2, 1]])])
    batch = Inputs(inputs.images.repeat(2, 1, 1, 1, 1), tokens, tokens != 0, inputs.state.repeat(2, 1))
    together = velocity(policy.model, batch, x.repeat(2, 1, 1))
    for row in range(2):
        alone = Inputs(inputs.images, tokens[row : row + 1], tokens[row : row + 1] != 0, inputs.state)
        torch.testing.assert_close(together[row : row + 1], velocity(policy.model, alone, x), rtol=1e-4, atol=1e-4)


def test_branches_as_one_batch_equal_branches_one_by_one(policy, inputs, x):
    model, times = policy.model, (0.1, 0.6)
    with torch.inference_mode():
        context = model.condition(model.prefill(model.encode(inputs)), inputs)
        together = model.step(torch.cat([x, 2 * x]), torch.tensor(times), context.expand(2))
        for row, scale in enumerate((1, 2)):
            alone = model.step(scale * x, times[row], context)
            torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-4)


def test_the_state_reaches_the_actions_and_actions_see_each_other(policy, inputs, x):
    base = velocity(policy.model, inputs, x)
    moved = Inputs(inputs.images, inputs.tokens, inputs.token_mask, inputs.state + 1)
    assert not torch.allclose(velocity(policy.model, moved, x), base, atol=1e-3)
    later = x.clone()
    later[:, -1] += 1
    assert not torch.allclose(velocity(policy.model, inputs, later)[:, 0], base[:, 0], atol=1e-4)


class Spy(Ops):
    """Writes down the questions and gives the dense answers."""

    def __init__(self):
        self.asked = []

    def rows(self, layer, x):
        self.asked.append(("rows", layer, x.shape[1]))

    def keys_values(self, layer, k, v, rows):
        self.asked.append(("keys_values", layer, k.shape[1]))
        return k, v

    def attended(self, layer, q, k):
        self.asked.append(("attended", layer, k.shape[1]))

    def ffn(self, layer, x, ffn, rows):
        self.asked.append(("ffn", layer, x.shape[1]))
        return ffn(x)


def test_every_layer_asks_for_what_it_computes_and_nothing_else(policy, inputs, x):
    model, spy = policy.model, Spy()
    with torch.inference_mode():
        context = model.prefill(model.encode(inputs), spy)
        one = [("rows", 135), ("keys_values", 135), ("attended", 135), ("ffn", 135)]
        expected = [(name, layer, rows) for layer in (0, 1) for name, rows in one]
        # The last of three layers gives keys and values only.
        assert spy.asked == [*expected, ("rows", 2, 135), ("keys_values", 2, 135)]
        spy.asked.clear()
        context = model.condition(context, inputs)
        plain = model.step(x, 0.5, context)
        assert spy.asked == []  # the state token stays dense
        assert torch.equal(model.step(x, 0.5, context, spy), plain)
        one = [("rows", 16), ("keys_values", 16), ("attended", 136 + 16), ("ffn", 16)]
        assert spy.asked == [(name, layer, rows) for layer in (0, 1, 2) for name, rows in one]


def test_rms_norm_scales_by_one_plus_weight_in_float32():
    norm = RMSNorm(4)
    norm.weight.data = torch.tensor([0.0, 1.0, -1.0, 0.5])
    x = torch.tensor([[3.0, -4.0, 0.0, 5.0]])
    expected = x / (x.square().mean() + 1e-6).sqrt() * torch.tensor([1.0, 2.0, 0.0, 1.5])
    torch.testing.assert_close(norm(x), expected)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_token_counts():
    assert PI0.tokens_per_view == 256
    assert TINY.tokens_per_view == 64


def test_the_tiny_model_is_made_of_the_same_modules():
    with torch.device("meta"):
        tiny, full = Pi0(TINY), Pi0(PI0)
    kinds = [{type(module) for module in model.modules()} for model in (tiny, full)]
    assert kinds[0] == kinds[1]
    assert 2e6 < sum(p.numel() for p in tiny.parameters()) < 3e6
