"""X-VLA beyond parity: its seams, the methods that work on it, and what it refuses."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from parity import CONVENTIONS
from replan import accel
from replan.policies import checkpoint
from replan.policies.agent import ChunkAgent
from replan.policies.call import call_policy
from replan.policies.model import Inputs, Ops
from replan.policies.policy import load_policy
from replan.policies.seams import Methods
from replan.policies.xvla import TINY, XVLA, XVLAConfig, XVLAProcessor

PROCESSOR = XVLAProcessor(**CONVENTIONS, embodiment=1)
CONFIG = replace(TINY, width=48, mlp=64, depth=3, grippers=(6,))


@pytest.fixture(scope="module")
def model(randomised):
    return randomised(XVLA(CONFIG))


@pytest.fixture(scope="module")
def policy(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("xvla") / "x.safetensors"
    checkpoint.save(path, checkpoint.Header("x_vla", asdict(CONFIG), asdict(PROCESSOR), {}), model, torch.float32)
    return load_policy(path)


def make_inputs(batch=1):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([[3, 5, 2, 0]] * batch)
    images = torch.rand((batch, 2, 3, 64, 64), generator=generator) * 2 - 1
    state = torch.randn((batch, CONFIG.state_dim), generator=generator)
    return Inputs(images, tokens, tokens != 0, state, None, torch.tensor([1] * batch))


def sample(batch=1):
    return torch.randn((batch, CONFIG.horizon, CONFIG.action_dim), generator=torch.Generator().manual_seed(1))


class Splice(Ops):
    """Computes some rows and takes keys, values and outputs of the others from another walk."""

    def __init__(self, rows, earlier=None):
        self.chosen, self.earlier, self.kept, self.given = rows, earlier, {}, []

    def rows(self, layer, x):
        return self.chosen

    def keys_values(self, layer, k, v, rows):
        if self.earlier is not None:
            old_k, old_v = self.earlier.kept["keys and values", layer]
            k, v = old_k.index_copy(1, rows, k), old_v.index_copy(1, rows, v)
        self.kept["keys and values", layer] = k, v
        return k, v

    def ffn(self, layer, x, ffn, rows):
        self.given.append((x.shape[1], None if rows is None else len(rows)))
        return ffn(x)

    def scatter(self, layer, x, computed, rows):
        self.kept["output", layer] = (
            self.earlier.kept["output", layer].index_copy(1, rows, computed) if self.earlier else computed
        )
        return self.kept["output", layer]


def test_all_rows_and_none_of_an_unchanged_step_are_dense_bit_for_bit(model):
    context = model.condition(model.prefill(model.encode(make_inputs())), make_inputs())
    dense = model.step(sample(), 0.7, context)
    count = CONFIG.horizon + context.rows.shape[1]
    every = Splice(torch.arange(count))
    assert torch.equal(model.step(sample(), 0.7, context, every), dense)
    assert every.given == [(count, count), (count, count), (CONFIG.horizon, CONFIG.horizon)]
    none = Splice(torch.zeros(0, dtype=torch.int64), every)
    assert torch.equal(model.step(sample(), 0.7, context, none), dense)
    # Rows of another step are an approximation: it is not dense, and less wrong with the actions' rows anew.
    other = model.step(sample(), 0.2, context)
    errors = [
        float((model.step(sample(), 0.2, context, Splice(torch.arange(rows), every)) - other).norm())
        for rows in (0, CONFIG.horizon, count)
    ]
    assert errors[0] > errors[1] > errors[2] == 0


def test_the_state_and_the_robot_enter_in_condition_alone(model):
    inputs = make_inputs()
    context = model.prefill(model.encode(inputs))
    moved = replace(inputs, state=inputs.state + 1, embodiment=torch.tensor([0]))
    assert torch.equal(model.prefill(model.encode(moved)).rows, context.rows)
    first, second = (model.step(sample(), 0.5, model.condition(context, each)) for each in (inputs, moved))
    assert not torch.allclose(first, second)
    with pytest.raises(ValueError, match="embodiment"):
        model.condition(context, replace(inputs, embodiment=None))


def test_branches_of_one_context_are_its_rows(model):
    context = model.condition(model.prefill(model.encode(make_inputs())), make_inputs())
    together = model.step(sample(3), torch.tensor([0.2, 0.5, 0.9]), context.expand(3))
    for row, time in enumerate((0.2, 0.5, 0.9)):
        torch.testing.assert_close(together[row : row + 1], model.step(sample(3)[row : row + 1], time, context))


def test_views_that_do_not_exist_are_as_those_that_a_mask_hides(model):
    inputs = make_inputs()
    hidden = replace(inputs, view_mask=torch.tensor([[True, False]]))
    absent = replace(inputs, images=inputs.images[:, :1])
    torch.testing.assert_close(model.encode(hidden).embeddings, model.encode(absent).embeddings)


@pytest.mark.parametrize("spec", ["few_step:steps=10", "dp_cache:keep=0/1/2/3/4/5/6/7/8/9", "action_cache:ratio=1"])
def test_methods_are_dense_bit_for_bit_in_their_limit_cases(policy, observation, spec):
    methods = Methods(accel.parse(spec))
    methods.attach(policy)
    methods.begin()
    dense = call_policy(policy, Methods(), observation, sample())
    assert torch.equal(call_policy(policy, methods, observation, sample()).chunk, dense.chunk)


def test_most_steps_compute_some_neurons_only(policy, observation):
    agent = ChunkAgent(policy, accel.parse("action_cache:ratio=0.5"), window=1)
    for _ in range(2):
        agent.act(observation)
    per_layer = (2 + 8 * 0.5) / 10  # but for the last of three, which computes some rows only, and these densely
    assert agent.round.extra["neurons"] == pytest.approx((2 * per_layer + 1) / 3) and agent.dense_error() > 0


def test_the_policy_acts_with_methods_and_refuses_those_that_cannot_work(policy, observation):
    for spec in ("dense", "few_step", "dp_cache"):
        agent = ChunkAgent(policy, accel.parse(spec))
        actions = np.stack([agent.act(observation) for _ in range(12)])
        assert np.isfinite(actions).all() and actions.shape == (12, 7)
    with pytest.raises(ValueError, match="does not offer: its model .XVLA. has step_ffn, step_rows"):
        ChunkAgent(policy, accel.parse("wam_cache"))
    with pytest.raises(ValueError, match="draft"):
        ChunkAgent(policy, accel.parse("flash"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "heads 5 must divide width 48"),
        ({"vision_heads": (2, 4, 5)}, "vision_heads 5 .* must divide vision_widths 96"),
        ({"vision_depths": (1, 1)}, "a value for each of its stages"),
        ({"grippers": (7,)}, r"grippers must be among 7 channels, got \(7,\)"),
        ({"positions": 50}, "leave no place for a text"),
        ({"image_size": 128}, "along a side of a view"),
        ({"time_width": 7}, "time_width 7 .* must be even"),
        ({"steps": 0}, "steps must be in"),
    ],
)
def test_dimensions_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        XVLAConfig(**(vars(CONFIG) | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embodiment": 2}, "embodiment must be in 0..1, got 2"),
        ({"cameras": ("a", "b", "c")}, "3 cameras"),
        ({"max_tokens": 47}, "47 tokens"),
    ],
)
def test_conventions_that_do_not_fit_the_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PROCESSOR, **change).check(CONFIG)
