"""Fast-WAM beyond parity: its seams, and that what it keeps changes nothing."""

import copy
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from parity import CONVENTIONS
from replan import accel
from replan.policies import checkpoint
from replan.policies.agent import ChunkAgent
from replan.policies.fast_wam import TINY, FastWAM, FastWAMConfig, FastWAMProcessor
from replan.policies.model import Inputs, Ops
from replan.policies.policy import load_policy
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

PROCESSOR = FastWAMProcessor(**CONVENTIONS)
CONFIG = replace(TINY, depth=3, width=48, mlp=64, heads=2, action_width=32, action_mlp=48)


@pytest.fixture(scope="module")
def model(randomised):
    return randomised(FastWAM(CONFIG))


def make_inputs(seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([[3, 5, 9, 0]] * batch)
    images = torch.rand((batch, 2, 3, 64, 64), generator=generator) * 2 - 1
    return Inputs(images, tokens, tokens != 0, torch.randn((batch, CONFIG.state_dim), generator=generator))


def chunk(model, context, seed=7):
    x = torch.randn((1, *model.noise_shape), generator=torch.Generator().manual_seed(seed))
    times = model.flow.schedule(3).times
    for time, later in zip(times[:-1], times[1:], strict=True):
        x = model.flow.advance(x, model.step(x, time, context), x, time, later)
    return x


class Splice(Ops):
    """Computes some rows anew, and takes the keys and values of the others from an earlier frame."""

    def __init__(self, rows, earlier=None):
        self.chosen, self.earlier, self.seen = rows, earlier, []

    def rows(self, layer, x):
        return self.chosen

    def keys_values(self, layer, k, v, rows):
        self.seen.append(layer)
        if self.earlier is None:
            return k, v
        old_k, old_v = self.earlier.video[layer]
        return old_k.index_copy(1, rows, k), old_v.index_copy(1, rows, v)


def equal(ours, theirs):
    pairs = zip((*ours.video, *ours.text), (*theirs.video, *theirs.text), strict=True)
    return all(torch.equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))


def test_all_rows_are_dense_bit_for_bit(model):
    prefix = model.encode(make_inputs())
    every = torch.arange(prefix.embeddings.shape[1])
    dense = model.prefill(prefix)
    assert equal(model.prefill(prefix, Splice(every)), dense)
    assert equal(model.prefill(prefix, Splice(every, model.prefill(model.encode(make_inputs(1))))), dense)


def test_no_rows_of_an_unchanged_frame_are_dense_bit_for_bit_and_every_layer_is_asked(model):
    prefix = model.encode(make_inputs())
    dense = model.prefill(prefix)
    none = Splice(torch.zeros(0, dtype=torch.int64), dense)
    assert equal(model.prefill(prefix, none), dense)
    assert none.seen == [0, 1, 2]


def test_the_error_falls_with_the_rows_that_are_computed_anew(model):
    before, after = make_inputs(), make_inputs(1)
    earlier, prefix = model.prefill(model.encode(before)), model.encode(after)
    dense = chunk(model, model.prefill(prefix))
    order = torch.randperm(prefix.embeddings.shape[1], generator=torch.Generator().manual_seed(0))
    errors = [
        float((chunk(model, model.prefill(prefix, Splice(order[:count].sort().values, earlier))) - dense).norm())
        for count in (0, 64, 112, 128)
    ]
    assert errors == sorted(errors, reverse=True) and errors[0] > 0 == errors[-1]


def test_keys_and_values_go_stale_when_only_the_state_changes(model):
    # The state is a token that the video branch attends to: a frozen image does not make its keys and values constant.
    still = make_inputs()
    moved = replace(still, state=still.state + 0.5)
    first, second = (model.prefill(model.encode(each)) for each in (still, moved))
    assert torch.equal(first.video[0][0], second.video[0][0])  # the first layer has not read the text yet
    assert not torch.equal(first.video[1][0], second.video[1][0])


def test_modulations_that_are_kept_are_those_that_are_computed(model):
    context, x = model.prefill(model.encode(make_inputs())), torch.randn((1, *model.noise_shape))
    fresh = FastWAM(CONFIG).requires_grad_(False).eval()
    fresh.load_state_dict(model.state_dict())
    with torch.inference_mode():
        kept = [model.step(x, 0.6, context) for _ in range(2)]
        assert torch.equal(*kept)
        assert torch.equal(kept[0], fresh.step(x, torch.tensor([0.6]), context))  # times in a tensor are not kept
        weights = {name: tensor * 0.9 for name, tensor in model.state_dict().items()}
        fresh.step(x, 0.6, context)
        for each in (copy.deepcopy(fresh), fresh):
            each.load_state_dict(weights)
            changed = each.step(x, 0.6, context)
            assert torch.equal(changed, each.step(x, torch.tensor([0.6]), context))
            assert not torch.equal(changed, kept[0])


def test_branches_of_one_context_are_its_rows(model):
    context = model.prefill(model.encode(make_inputs()))
    x = torch.randn((3, *model.noise_shape), generator=torch.Generator().manual_seed(1))
    together = model.step(x, torch.tensor([0.2, 0.5, 0.9]), context.expand(3))
    for row, time in enumerate((0.2, 0.5, 0.9)):
        torch.testing.assert_close(together[row : row + 1], model.step(x[row : row + 1], time, context))


@pytest.mark.parametrize("count", [0, 13, 64, 128])
def test_the_operations_of_a_prefill_are_those_that_a_profile_counts(model, count):
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the counter does not know the CPU's fused attention
        prefix, other = model.encode(make_inputs()), model.prefill(model.encode(make_inputs(1)))
        model.prefill(prefix)  # keeps the instruction's keys and values
        with FlopCounterMode(display=False) as texts:
            model.video.read(prefix)
            model.action.read(prefix)
        rows = torch.arange(count)
        with FlopCounterMode(display=False) as whole:
            model.prefill(prefix, Splice(rows, other))
    counted = whole.get_total_flops() - texts.get_total_flops()
    assert counted == model.prefill_flops(count, visual=128, text=5)


def test_a_checkpoint_of_the_family_acts_as_the_model_that_was_saved(model, tmp_path, observation):
    header = checkpoint.Header("fast_wam", asdict(CONFIG), asdict(PROCESSOR), {})
    checkpoint.save(tmp_path / "wam.safetensors", header, model, torch.float32)
    policy = load_policy(tmp_path / "wam.safetensors")
    for spec in ("dense", "few_step", "dp_cache", "wam_cache+few_step"):
        agent = ChunkAgent(policy, accel.parse(spec))
        actions = np.stack([agent.act(observation) for _ in range(12)])
        assert np.isfinite(actions).all() and actions.shape == (12, 7)
    with pytest.raises(ValueError, match="'flash' .*|.*no draft|.*draft"):
        ChunkAgent(policy, accel.parse("flash"))


def test_padding_is_seen_as_zeros(model):
    inputs = make_inputs()
    words = model.encode(inputs).words
    assert words.shape == (1, 4, CONFIG.text_width) and words[0, 2].any() and not words[0, 3].any()
    context = model.prefill(model.encode(inputs))
    assert context.text[0][0].shape[1] == 5  # the padding, and the state behind it


def test_keys_and_values_of_an_instruction_are_those_of_a_model_that_has_read_nothing_yet(model):
    used, fresh = FastWAM(CONFIG), FastWAM(CONFIG)
    with torch.inference_mode():
        for other in (used, fresh):
            other.load_state_dict(model.state_dict())
        first, second = make_inputs(), make_inputs(1)
        second = replace(second, tokens=torch.tensor([[3, 5, 8, 0]]))
        for inputs in (first, second, second, first):
            fresh.load_state_dict(model.state_dict())  # forgets
            assert equal(used.prefill(used.encode(inputs)), fresh.prefill(fresh.encode(inputs)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "heads 5 must divide width 48"),
        ({"image_size": 60}, "image_size 60 a multiple of 8"),
        ({"vae_halves_frames": (True, True)}, r"got \(True, True\)"),
        ({"vae_widths": (24, 48, 96)}, "48 averages do not make 96 channels"),
        ({"vae_widths": (24, 0, 96)}, r"vae_widths\[1\] must be in"),
        ({"steps": 0}, "steps must be in"),
    ],
)
def test_dimensions_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FastWAMConfig(**(vars(CONFIG) | change))
