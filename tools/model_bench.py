"""Times rounds of our models against the public implementations, with the same weights, in turns in one process.

    oracle/bin/python tools/model_bench.py pi0                    tiny dimensions
    oracle/bin/python tools/model_bench.py pi0 --real --depth 2   published widths, two layers of each kind

The environment is that of ``tests/golden/make_pi0.py`` (pi0, pi0.5: openpi's PyTorch), ``make_xvla.py`` or
``make_fast_wam.py`` (lerobot), and besides scipy and this checkout (``oracle/bin/pip install --no-deps -e .``). GR00T's
public code is on no package index. openpi's runs without torch.compile, as it is written, and so do ours.

Times are processor time of one thread, so that a shared core counts less; still it is slower than a core of one's own.
``of the floor`` is the time that a round's products need at the rate of a large product, rated between the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
import time  # noqa: TID251 (measures processor time)
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from replan.eval.bench import Products
from replan.policies import fast_wam, pi0, pi05, xvla
from replan.policies.model import FlowModel, Inputs
from replan.policies.published.fast_wam import load_published as load_fast_wam
from replan.policies.published.pi0 import load_published as load_pi0
from replan.policies.published.pi0 import load_published_pi05 as load_pi05
from replan.policies.published.xvla import load_published as load_xvla
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "golden"))
SIDE = 1536  # of the matrices whose product rates the machine


class Pair(NamedTuple):
    """The same model twice.

    Attributes:
        ours: Our model.
        inputs: What it sees.
        noise: Where denoising starts.
        theirs: A round of the public implementation, on the same.
        watched: Its stages: the objects and the names of methods that are one.
    """

    ours: FlowModel
    inputs: Inputs
    noise: Tensor
    theirs: Callable[[], Tensor]
    watched: dict[str, tuple[Any, str]]


def paligemma(family: str, real: bool, depth: int, masked: bool, folder: Path) -> Pair:
    """pi0 or pi0.5 of openpi; ``masked`` is a robot of two views, whose prompt fills a third of its places."""
    import make_pi0

    module = pi0 if family == "pi0" else pi05
    sizes = dict(depth=depth, vision_depth=depth, vocab=1024) if real else dict(stem=((96, 8, 8),), action_dim=32)
    config = replace(module.FAMILY.sizes["layers" if real else "tiny"], **sizes)
    if family == "pi0":
        config = replace(config, state_dim=32)
    layer = (config.heads, 1, config.head_dim)
    make_pi0.HORIZON = config.horizon
    vision = dict(
        image_size=config.image_size,
        patch_size=config.stem[0][1],
        hidden_size=config.vision_width,
        num_hidden_layers=config.vision_depth,
        num_attention_heads=config.vision_heads,
        intermediate_size=config.vision_mlp,
        projection_dim=config.width,
    )
    model = make_pi0.build(
        {
            "vlm": (config.width, config.depth, config.mlp, *layer),
            "expert": (config.expert_width, config.depth, config.expert_mlp, *layer),
        },
        vision,
        family == "pi0.5",
    )
    torch.set_float32_matmul_precision("highest")  # the constructor lowers it
    generator = torch.Generator().manual_seed(0)
    make_pi0.randomise(model, generator)
    weights = {name: x[: config.vocab] if len(x) == 257_152 else x for name, x in model.state_dict().items()}
    ours = (load_pi0 if family == "pi0" else load_pi05)(stored(weights, folder), config)

    words = 48
    view_mask = torch.tensor([[True, True, not masked]])
    token_mask = torch.arange(words)[None] < (17 if masked else words)
    images = torch.rand((1, 3, 3, config.image_size, config.image_size), generator=generator) * 2 - 1
    tokens = torch.randint(0, config.vocab, (1, words), generator=generator)
    state = torch.randn((1, 32), generator=generator)
    noise = torch.randn((1, config.horizon, 32), generator=generator)
    observation = types.SimpleNamespace(
        images={view: images[:, number] for number, view in enumerate(make_pi0.VIEWS)},
        image_masks={view: view_mask[:, number] for number, view in enumerate(make_pi0.VIEWS)},
        state=state,
        tokenized_prompt=tokens,
        tokenized_prompt_mask=token_mask,
        token_ar_mask=None,
        token_loss_mask=None,
    )
    make_pi0.pi0_pytorch._preprocessing.preprocess_observation_pytorch = functools.partial(
        make_pi0.preprocessing_pytorch.preprocess_observation_pytorch, image_resolution=(config.image_size,) * 2
    )
    eager = make_pi0.pi0_pytorch.PI0Pytorch.sample_actions  # the instance holds a compiled copy
    inputs = Inputs(images, tokens, token_mask, state, view_mask)
    watched = {"encode": (model, "embed_prefix"), "denoise": (model, "denoise_step")}
    return Pair(ours, inputs, noise, lambda: eager(model, "cpu", observation, noise, num_steps=10), watched)


def x_vla(real: bool, depth: int, folder: Path) -> Pair:
    """X-VLA of lerobot, of two views."""
    import make_xvla

    changes = dict(vision_depths=(1, 1, 1, 1), vlm_depth=depth, depth=depth) if real else {}
    robot = dict(action_dim=20, state_dim=20, grippers=(9, 19))
    config = replace(xvla.FAMILY.sizes["layers" if real else "tiny"], **changes, **robot)
    make_xvla.STATE = config.state_dim
    vision = dict(
        model_type="davit",
        dim_embed=list(config.vision_widths),
        num_heads=list(config.vision_heads),
        num_groups=list(config.vision_groups),
        depths=list(config.vision_depths),
        window_size=config.window,
        projection_dim=config.vlm_width,
        image_pos_embed={"type": "learned_abs_2d", "max_pos_embeddings": config.vision_positions},
        visual_temporal_embedding={"type": "COSINE", "max_temporal_embeddings": 100},
        **{
            name: given[: len(config.vision_widths)]
            for name, given in dict(
                patch_size=[7, 3, 3, 3], patch_stride=[4, 2, 2, 2], patch_padding=[3, 1, 1, 1],
                patch_prenorm=[False, True, True, True],
            ).items()
        },
    )  # fmt: skip
    text = dict(
        vocab_size=config.vocab,
        d_model=config.vlm_width,
        encoder_layers=config.vlm_depth,
        encoder_ffn_dim=config.vlm_mlp,
        encoder_attention_heads=config.vlm_heads,
        decoder_layers=1,
        decoder_ffn_dim=8,
        decoder_attention_heads=config.vlm_heads,
        max_position_embeddings=config.vlm_positions,
    )
    model = make_xvla.build(
        dict(
            florence_config={"vision_config": vision, "text_config": text},
            hidden_size=config.width,
            depth=config.depth,
            num_heads=config.heads,
            mlp_ratio=config.mlp / config.width,
            num_domains=config.domains,
            len_soft_prompts=config.prompts,
            dim_time=config.time_width,
            max_len_seq=config.positions,
            chunk_size=config.horizon,
            n_action_steps=1,
        )
    )
    model.action_space.postprocess = lambda actions: actions  # gripper channels stay logits, as in ours
    generator = torch.Generator().manual_seed(0)
    make_xvla.randomise(model, generator)
    weights = {f"model.{name}": x for name, x in model.state_dict().items()}
    weights.pop("model.vlm.language_model.encoder.embed_tokens.weight", None)  # shared
    ours = load_xvla(stored(weights, folder), config)
    images = torch.rand((1, 2, 3, config.image_size, config.image_size), generator=generator) * 2 - 1
    tokens = torch.randint(0, config.vocab, (1, 12), generator=generator)
    view_mask, robots = torch.ones((1, 2), dtype=torch.bool), torch.tensor([1])
    state = torch.randn((1, config.state_dim), generator=generator)
    noise = torch.randn((1, config.horizon, config.action_dim), generator=generator)
    pixels = ((images + 1) / 2 - make_xvla.MEAN) / make_xvla.STD

    def theirs() -> Tensor:
        sample, torch.randn = torch.randn, lambda *args, **kwargs: noise  # the only numbers it samples
        try:
            return model.generate_actions(tokens, pixels, view_mask, robots, state, steps=10)
        finally:
            torch.randn = sample

    inputs = Inputs(images, tokens, torch.ones_like(tokens, dtype=torch.bool), state, view_mask, robots)
    return Pair(ours, inputs, noise, theirs, {"denoise": (model.transformer, "forward")})


def wam(real: bool, depth: int, folder: Path) -> Pair:
    """Fast-WAM of lerobot, of two views; with a small image encoder at any width."""
    import make_fast_wam

    config = fast_wam.FAMILY.sizes["layers" if real else "tiny"]
    channels = config.latents if real else 6
    config = replace(
        config,
        depth=depth if real else config.depth,
        image_size=112 if real else 64,
        vae_widths=(8, 8, 16, 16),
        vae_blocks=2,
        vae_halves_frames=(False, True),
        latents=channels,
        state_dim=make_fast_wam.STATE,
        vocab=6,
    )
    shared = dict(freq_dim=config.time_width, text_dim=config.text_width)
    video = dict(in_dim=channels, out_dim=channels, hidden_dim=config.width, ffn_dim=config.mlp, **shared)
    make_fast_wam.VAE |= dict(z_dim=channels, latents_mean=[0.1] * channels, latents_std=[0.9] * channels)
    make_fast_wam.TINY_VIDEO = video
    make_fast_wam.TINY_ACTION = dict(hidden_dim=config.action_width, ffn_dim=config.action_mlp, **shared)
    make_fast_wam.TINY_BOTH = dict(
        num_heads=config.heads, attn_head_dim=config.width // config.heads, num_layers=config.depth
    )
    generator = torch.Generator().manual_seed(0)
    vae = make_fast_wam.build_vae().eval()
    model = make_fast_wam.build(vae)
    make_fast_wam.randomise(vae, generator)
    make_fast_wam.randomise(model, generator)
    weights = {f"model.{name}": x for name, x in model.state_dict().items() if not name.startswith("vae.")}
    encoder = {name: x for name, x in vae.vae.state_dict().items() if name.startswith(("encoder.", "quant_conv."))}
    images = torch.rand((1, 2, 3, config.image_size, config.image_size), generator=generator) * 2 - 1
    text = torch.randn((1, 5, config.text_width), generator=generator)
    words = torch.cat([torch.zeros(1, config.text_width), text[0]])
    (folder / "vae").mkdir()
    paths = stored(weights, folder), stored(encoder, folder / "vae")
    mean, std = (make_fast_wam.VAE[f"latents_{name}"] for name in ("mean", "std"))
    ours = load_fast_wam(*paths, mean, std, words, config)
    state = torch.randn((1, config.state_dim), generator=generator)
    noise = torch.randn((1, config.horizon, config.action_dim), generator=generator)
    model._make_action_latents = lambda *args: noise

    def theirs() -> Tensor:
        return model.infer_action(
            prompt=None,
            input_image=(torch.cat(images.unbind(1), -1) + 1) / 2,
            action_horizon=config.horizon,
            proprio=state,
            context=text,
            context_mask=torch.ones((1, 5), dtype=torch.bool),
            num_inference_steps=10,
        )["action"][None]

    tokens = torch.arange(1, 6)[None]
    watched = {"encode": (model.vae, "encode"), "denoise": (model, "_predict_action_noise_with_cache")}
    return Pair(ours, Inputs(images, tokens, tokens > 0, state), noise, theirs, watched)


def stored(weights: dict[str, Tensor], folder: Path) -> Path:
    """Returns a file of weights."""
    save_file({name: x.detach().contiguous().clone() for name, x in weights.items()}, folder / "model.safetensors")
    return folder / "model.safetensors"


Times = dict[str, float]


def round_of_ours(pair: Pair) -> tuple[Tensor, Times]:
    """Returns actions and processor seconds by stage."""
    model, inputs, x, clock = pair.ours, pair.inputs, pair.noise, time.process_time
    begin = clock()
    prefix = model.encode(inputs)
    encoded = clock()
    context = model.condition(model.prefill(prefix), inputs)
    filled = clock()
    schedule = model.flow.schedule()
    for at, later in zip(schedule.times[:-1], schedule.times[1:], strict=True):
        x = model.flow.advance(x, model.step(x, at, context), pair.noise, at, later)
    end = clock()
    return x, {"encode": encoded - begin, "prefill": filled - encoded, "denoise": end - filled, "round": end - begin}


def round_of_theirs(pair: Pair) -> tuple[Tensor, Times]:
    """Likewise; what is no watched stage is ``prefill``."""
    spent: Times = defaultdict(float)
    with contextlib.ExitStack() as stack:
        for stage, (holder, name) in pair.watched.items():
            stack.enter_context(_watch(holder, name, stage, spent))
        begin = time.process_time()
        actions = pair.theirs()
        spent["round"] = time.process_time() - begin
    spent["prefill"] = spent["round"] - sum(spent[stage] for stage in pair.watched)
    return actions, spent


@contextlib.contextmanager
def _watch(holder: Any, name: str, stage: str, spent: Times) -> Iterator[None]:
    method = getattr(holder, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        try:
            return method(*args, **kwargs)
        finally:
            spent[stage] += time.process_time() - begin

    object.__setattr__(holder, name, timed)
    try:
        yield
    finally:
        object.__delattr__(holder, name)


def rate(square: Tensor) -> float:
    """Returns operations per second of a product of square matrices."""
    begin = time.process_time()
    torch.matmul(square, square)
    return 2 * SIDE**3 / (time.process_time() - begin)


@torch.inference_mode()
def compare(pair: Pair, rounds: int) -> str:
    """Lets both take turns and returns a table of medians, and ratios with their quartiles."""
    square = torch.randn(SIDE, SIDE)
    samples: list[tuple[Times, Times]] = []
    rates: list[float] = []
    for number in range(rounds + 2):  # the first two are warm-up
        takers = [round_of_ours, round_of_theirs]
        results = {take: take(pair) for take in (takers if number % 2 else takers[::-1])}
        (mine, ours), (public, theirs) = results[round_of_ours], results[round_of_theirs]
        if "encode" not in pair.watched:  # the public code does not part the two
            ours["prefill"] += ours.pop("encode")
        if number >= 2:
            samples.append((ours, theirs))
            rates.append(rate(square))
    difference = float((mine - public).norm() / public.norm())
    with Products() as products:
        round_of_ours(pair)
    floor = sum(each.flops for each in products.all) / median(rates)
    lines = []
    for stage in ("encode", "prefill", "denoise", "round"):
        if stage in samples[0][0]:
            a, b = (median(each[side][stage] for each in samples) for side in (0, 1))
            low, middle, high = quantiles([theirs[stage] / ours[stage] for ours, theirs in samples], n=4)
            lines.append(f"  {stage:8} {1e3 * a:9.2f} ms {1e3 * b:9.2f} ms   {middle:.2f} [{low:.2f}, {high:.2f}]")
    best = median(ours["round"] for ours, _ in samples)
    lines.append(
        f"  {rounds} rounds; outputs differ by {difference:.1e}; products {floor * median(rates) / 1e9:.3g} GFLOP at "
        f"{median(rates) / 1e9:.0f} GFLOP/s: {1e3 * floor:.2f} ms, the round is {best / floor:.2f} times that floor"
    )
    return "\n".join(lines)


def main() -> None:
    """Prints a table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=("pi0", "pi0.5", "x_vla", "fast_wam"))
    parser.add_argument("--real", action="store_true", help="published widths")
    parser.add_argument("--depth", type=int, default=2, help="layers of each kind at published widths")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each, after two of warm-up")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    sizes = f"published widths, {given.depth} layers" if given.real else "tiny"
    for masked in (True, False) if given.family.startswith("pi0") else (False,):
        with tempfile.TemporaryDirectory(prefix="replan-model-bench-") as name:
            arguments = (given.real, given.depth)
            if given.family.startswith("pi0"):
                pair = paligemma(given.family, *arguments, masked, Path(name))
            else:
                pair = (x_vla if given.family == "x_vla" else wam)(*arguments, Path(name))
        seen = ", 2 of 3 views, 17 of 48 tokens" if masked else ""
        print(f"{given.family}, {sizes}{seen}: ours, public, public/ours")
        print(compare(pair, given.rounds), flush=True)


if __name__ == "__main__":
    main()
