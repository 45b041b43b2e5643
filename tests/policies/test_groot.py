"""GR00T N1.6 beyond parity: its seams, methods on it, and its conventions."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from parity import CONVENTIONS
from replan import accel
from replan.policies import checkpoint
from replan.policies.agent import ChunkAgent
from replan.policies.cropped import by_area, cropped
from replan.policies.groot import TINY, Groot, GrootConfig
from replan.policies.groot_processor import GrootProcessor
from replan.policies.model import Inputs, Ops
from replan.policies.policy import load_policy
from replan.policies.processing import SMALLEST, ObservationError
from replan.policies.qwen3 import causal

CONFIG = replace(TINY, vision_depth=1, depth=2, width=64, mlp=96, expert_width=64, expert_mlp=96, robots=3)
PROCESSOR = GrootProcessor(
    **{**CONVENTIONS, "action_mean": (0.2,) * 7},
    robot=2,
    image_token=CONFIG.image_token,
    tokens_per_view=CONFIG.tokens_per_view,
    chat=False,
    formal=True,
    state_clip=(True,) * 10 + (False,),
    action_clip=(True,) * 6 + (False,),
    edge=0,
    crop=1.0,
)


@pytest.fixture(scope="module")
def model(randomised):
    return randomised(Groot(CONFIG))


@pytest.fixture(scope="module")
def policy(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("groot") / "groot.safetensors"
    header = checkpoint.Header("groot_n1.6", asdict(CONFIG), asdict(PROCESSOR), {})
    checkpoint.save(path, header, model, torch.float32)
    return load_policy(path)


def make_inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([[3, 5, *[CONFIG.image_token] * 32, 9]])
    images = torch.rand((1, 2, 3, 64, 64), generator=generator) * 2 - 1
    state = torch.randn((1, CONFIG.state_dim), generator=generator)
    return Inputs(images, tokens, torch.ones_like(tokens, dtype=torch.bool), state, None, torch.tensor([1]))


class Recorder(Ops):
    """Computes every FFN as the model does, and notes what it was asked."""

    def __init__(self, spoil=None):
        self.spoil, self.asked, self.tapped = spoil, [], []

    def ffn(self, layer, x, ffn, rows):
        self.asked.append((layer, tuple(x.shape), rows))
        out = ffn(x)
        if self.spoil is not None:
            out[:, self.spoil] = 0
        return out

    def attended(self, layer, q, k):
        self.tapped.append((layer, q.shape[1], k.shape[1]))


@torch.inference_mode()
def context_of(model, ops, inputs):
    return model.condition(model.prefill(model.encode(inputs), ops), inputs)


def test_the_walks_ask_at_every_layer_and_a_dense_answer_is_dense_bit_for_bit(model):
    inputs, prefill, step = make_inputs(), Recorder(), Recorder()
    x = torch.randn((1, *model.noise_shape), generator=torch.Generator().manual_seed(1))
    context = context_of(model, prefill, inputs)
    with torch.inference_mode():
        velocity = model.step(x, 0.5, context, step)
        dense = model.step(x, 0.5, context_of(model, Ops(), inputs))
    assert torch.equal(velocity, dense)
    assert prefill.asked == [(layer, (1, 35, CONFIG.width), None) for layer in range(CONFIG.depth)]
    assert step.asked == [(block, (1, 17, CONFIG.expert_width), None) for block in range(CONFIG.expert_depth)]
    assert prefill.tapped == [(layer, 35, 35) for layer in range(CONFIG.depth)]
    assert step.tapped == [(0, 17, 3), (1, 17, 17), (2, 17, 32), (3, 17, 17)]  # text, itself, images, itself


def test_a_row_of_the_language_model_depends_on_the_rows_before_it_alone(model):
    inputs = make_inputs()
    dense, other = context_of(model, Ops(), inputs), context_of(model, Recorder(spoil=20), inputs)
    (text, text_other), (images, images_other) = (
        (dense.pairs[block][0][0], other.pairs[block][0][0]) for block in (0, 1)
    )
    changed = [not torch.equal(a, b) for a, b in zip(text, text_other, strict=True)]
    assert changed == [False, False, True]  # the last word stands behind the images
    changed = [not torch.equal(a, b) for a, b in zip(images, images_other, strict=True)]
    assert changed == [False] * 18 + [True] * 14


def test_branches_of_one_context_are_its_rows(model):
    context = context_of(model, Ops(), make_inputs())
    x = torch.randn((3, *model.noise_shape), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        together = model.step(x, torch.tensor([0.2, 0.5, 0.9]), context.expand(3))
        for row, time in enumerate((0.2, 0.5, 0.9)):
            torch.testing.assert_close(together[row : row + 1], model.step(x[row : row + 1], time, context))


def test_branches_of_two_contexts_are_theirs(model):
    one, two = make_inputs(), make_inputs(1)
    both = Inputs(
        *(torch.cat([getattr(each, name) for each in (one, two)]) for name in ("images", "tokens")),
        torch.cat([one.token_mask, two.token_mask]),
        torch.cat([one.state, two.state]),
        None,
        torch.tensor([1, 2]),
    )
    x = torch.randn((4, *model.noise_shape), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        together = model.step(x, 0.5, context_of(model, Ops(), both).expand(2))
        for row in range(4):
            alone = replace((one, two)[row % 2], embodiment=both.embodiment[row % 2 : row % 2 + 1])
            single = model.step(x[row : row + 1], 0.5, context_of(model, Ops(), alone))
            torch.testing.assert_close(together[row : row + 1], single)


def test_the_prefix_says_where_visual_tokens_stand_and_the_model_which_pixels_they_see(model):
    inputs = make_inputs()
    before = model.encode(inputs)
    assert before.visual == 0 and before.visual_rows().tolist() == list(range(2, 34))
    changed = inputs.images.clone()
    changed[0, 1, :, 20:30, 40:50] += 0.5  # within one token of the second view and its neighbours
    after = model.encode(replace(inputs, images=changed))
    pixels = (model.patches(changed) != model.patches(inputs.images))[0].any(1)
    assert pixels.nonzero()[:, 0].tolist() == [16 + 4 + 2, 16 + 4 + 3]
    moved = (after.embeddings - before.embeddings)[0].norm(dim=1)[before.visual_rows()]
    assert not moved[:16].any() and moved[16:].argmax() + 16 in (22, 23)


def test_padding_sees_itself_so_that_every_row_sees_something():
    seen = causal(torch.tensor([[False, True, True], [True, True, False]]))[:, 0]
    assert seen.int().tolist() == [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]


def test_everything_learns_but_what_another_robot_has(randomised):
    model = randomised(Groot(CONFIG), 1).requires_grad_(True).train()
    inputs = make_inputs()
    context = model.condition(model.prefill(model.encode(inputs)), inputs).expand(2)
    x = torch.randn((2, *model.noise_shape), generator=torch.Generator().manual_seed(1))
    model.step(x, torch.tensor([0.3, 0.8]), context).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    learned = model.decoder_out.weight.grad.abs().sum((1, 2))
    assert learned[1] > 0 and not learned[0] and not learned[2]


def test_a_prompt_without_places_for_all_views_is_refused(model):
    inputs = make_inputs()
    with pytest.raises(ValueError, match=r"must have 32 places .* of 2 views, got \[31\]"):
        model.encode(replace(inputs, tokens=inputs.tokens[:, 3:], token_mask=inputs.token_mask[:, 3:]))


@pytest.mark.parametrize(
    "spec", ["few_step:steps=4", "dp_cache:keep=0/1/2/3", "context_cache:ratio=1+action_cache:ratio=1"]
)
def test_the_limit_case_of_a_schedule_is_bit_for_bit_dense(policy, observation, spec):
    dense, limit = (
        np.stack([agent.act(observation) for _ in range(12)])
        for agent in (ChunkAgent(policy, accel.parse(each)) for each in ("dense", spec))
    )
    assert np.array_equal(limit, dense) and np.isfinite(dense).all() and dense.shape == (12, 7)


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ("few_step:steps=2", [0.0, 0.5]),
        ("dp_cache:keep=0/2", [0.0, 0.5]),
        ("dp_cache", [0.0, 0.5, 0.75]),
    ],
)
def test_a_schedule_with_fewer_steps_takes_these(policy, observation, spec, taken, monkeypatch):
    times, step = [], policy.model.step
    monkeypatch.setattr(policy.model, "step", lambda x, time, *rest: (times.append(time), step(x, time, *rest))[1])
    agent = ChunkAgent(policy, accel.parse(spec))
    agent.act(observation)
    assert times == taken and agent.dense_error() > 0


def test_defaults_that_name_steps_fit_four_of_them(policy):
    agent = ChunkAgent(policy, accel.parse("bac"))
    assert agent.methods.all[0].updates == 2


def test_the_caches_of_rmuscle_reuse_visual_rows_in_the_midst_of_the_prompt_and_neurons(policy, observation):
    agent = ChunkAgent(policy, accel.parse("context_cache:ratio=0.25+action_cache:ratio=0.25"), window=1)
    agent.act(observation)
    assert agent.dense_error() == 0
    agent.act({**observation, "third": observation["third"][::-1].copy()})
    assert agent.round.extra == pytest.approx({"ffn_rows": 0.25, "neurons": (2 + 2 * 0.25) / 4})  # anchors at 0 and 2
    assert agent.dense_error() > 0
    agent = ChunkAgent(policy, accel.parse("context_cache:ratio=0"), window=1)
    agent.act(observation)
    agent.act(observation)
    assert agent.round.extra["ffn_rows"] == 0 and agent.dense_error() < 1e-4


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("flash", "needs a draft, which starts from a PaliGemma layer, and a Groot has none"),
        ("wam_cache", "the 'prefill_rows' seam, which groot does not offer"),
        ("fastv", "the 'prefill_rows' seam, which groot does not offer"),
        ("dp_cache:keep=0/9", "dp_cache keeps step 9, but the policy has 4 steps: name some of 0 to 3"),
        ("bac:updates=5", "bac updates at 5 steps, but .* has 4"),
    ],
)
def test_what_does_not_apply_is_refused_with_a_reason(policy, spec, reason):
    with pytest.raises(ValueError, match=reason):
        ChunkAgent(policy, accel.parse(spec))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 72}, "image_size 72 must be a multiple of 16"),
        ({"vision_heads": 5}, "vision_heads 5 must divide vision_width 96"),
        ({"expert_heads": 5}, "expert_heads 5 expert_width 64"),
        ({"kv_heads": 3}, "kv_heads 3 must divide heads 4"),
        ({"head_dim": 31}, "head_dim 31 must be even"),
        ({"image_token": 128}, "image_token 128 must be below vocab 128"),
        ({"horizon": 17}, "horizon 17 at most places 16"),
        ({"steps": 0}, "steps must be in"),
    ],
)
def test_dimensions_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GrootConfig(**(vars(CONFIG) | change))


# Conventions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_clip": (True,)}, "got 1 for 11 and 7 for 7"),
        ({"image_token": 6}, "image_token 6 is that of the word 'the'"),
        ({"robot": -1}, "robot must be at least 0"),
        ({"crop": 0.0}, r"crop in \(0, 1\]"),
        ({"edge": 2000}, "edge in 0..1024"),
    ],
)
def test_conventions_that_contradict_each_other_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PROCESSOR, **change)


@pytest.mark.parametrize("change", [{"robot": 3}, {"image_token": 99}, {"tokens_per_view": 9}])
def test_conventions_of_another_model_are_refused(change):
    with pytest.raises(ValueError, match="do not fit a model of 3 robots with 127 and 16"):
        replace(PROCESSOR, **change).check(CONFIG)


def test_states_and_actions_are_kept_within_their_bounds_and_others_are_not(observation):
    state = np.zeros(11, np.float32)
    state[0], state[1], state[10] = 1.1, 9.0, 9.0
    scaled = PROCESSOR.normalise_state(torch.from_numpy(state))
    assert scaled[[0, 1]].tolist() == [0.5, 1.0] and float(scaled[10]) == pytest.approx(4.45)
    chunk = torch.tensor([[-3.0, 0.5, 0, 0, 0, 0, -3.0]])
    assert PROCESSOR.actions(chunk, state)[0, [0, 1, 6]] == pytest.approx([-0.3, 0.45, -1.3])
    native = torch.tensor([[9.0, 0.45, 0.2, 0.2, 0.2, 0.2, 9.0]])
    assert PROCESSOR.normalise_actions(native, torch.zeros(11))[0, [0, 1, 6]].tolist() == pytest.approx([1, 0.5, 17.6])


def test_a_channel_that_is_constant_in_the_data_says_nothing():
    processor = replace(PROCESSOR, state_std=(SMALLEST, *PROCESSOR.state_std[1:]))
    assert processor.normalise_state(torch.full((11,), 0.3))[:2].tolist() == pytest.approx([0.0, 0.1])


def test_the_prompt_is_the_published_chat_and_formal():
    state = torch.zeros(11)
    assert PROCESSOR.prompt("Put the Hairbrush, in the_bin!", state) == "put the hairbrush in the_bin"
    assert replace(PROCESSOR, formal=False).prompt("Put it.", state) == "Put it."
    chat = replace(PROCESSOR, chat=True, tokens_per_view=2).prompt("Put it.", state)
    assert chat == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nput it"
        "<image 1><img><IMG_CONTEXT><IMG_CONTEXT></img><image 2><img><IMG_CONTEXT><IMG_CONTEXT></img><|im_end|>\n"
    )


def test_inputs_have_the_words_then_the_places_and_name_the_robot(observation):
    inputs = PROCESSOR.inputs(observation)
    assert inputs.tokens[0].tolist() == [4, 6, 2, 3, 6, 5, 1, 0, *[127] * 32]
    assert inputs.token_mask.sum() == 39 and not inputs.token_mask[0, 7]
    assert inputs.embodiment.tolist() == [2] and inputs.images.shape == (1, 2, 3, 64, 64)


def scene(side, seed=0):
    """An image of noise below a gradient."""
    image = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    image[: side // 2] = np.linspace(0, 255, side, dtype=np.uint8)[None, :, None]
    return image


@pytest.mark.parametrize("before", [480, 512, 300, 256, 224, 128, 243])
def test_scaling_is_opencvs_by_area(before):
    cv2 = pytest.importorskip("cv2")
    image = scene(before)
    theirs = cv2.resize(image, (256, 256), interpolation=cv2.INTER_AREA) if before != 256 else image
    difference = np.abs(by_area(image, 256).astype(int) - theirs)
    assert difference.max() <= 1 and difference.mean() < 0.15


def test_the_crop_is_the_published_one():
    cv2, pil = pytest.importorskip("cv2"), pytest.importorskip("PIL.Image")
    image = scene(256)
    inner = cv2.resize(image[6:249, 6:249], (256, 256), interpolation=cv2.INTER_AREA)
    theirs = np.asarray(pil.fromarray(inner).resize((252, 252)))
    ours = cropped(image, 252, 256, 0.95)
    assert ours.shape == (252, 252, 3) and np.abs(ours.astype(int) - theirs).max() <= 2


def test_a_mirrored_image_is_cropped_behind_the_mirror(observation):
    processor = replace(PROCESSOR, edge=63, crop=0.9, mirror=True)  # 56 of 63: more is cut on one side
    image = observation["third"]
    expected = cropped(np.ascontiguousarray(image[:, ::-1]), 64, 63, 0.9)
    assert np.array_equal(processor.views(observation)[0], expected)
    assert not np.array_equal(processor.views(observation)[0], cropped(image, 64, 63, 0.9)[:, ::-1])


def test_an_image_that_is_not_square_is_not_cropped(observation):
    processor = replace(PROCESSOR, edge=72, crop=0.95)
    with pytest.raises(ObservationError, match=r"camera 'wrist' must be square, got \[64, 48, 3\]"):
        processor.inputs(observation | {"wrist": observation["wrist"][:, :48]})
    assert PROCESSOR.inputs(observation | {"wrist": observation["wrist"][:, :48]}).images.shape[-1] == 64
