"""Synthetic checkpoints of GR00T N1.6, X-VLA and Fast-WAM: every published key, at small dimensions, random weights."""

from __future__ import annotations

import json
from functools import partial

import groot_recording
import numpy as np
import torch
from folders import ACTION, INSTRUCTION, STATE, WORDS, sampled, write_processors
from parity import FAST_WAM_CONFIG, older, write
from replan.policies.fast_wam import FastWAM
from replan.policies.published import fast_wam, groot_policy, xvla
from replan.policies.published.fast_wam_policy import VAE
from replan.policies.xvla import XVLA, XVLAConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = ("put the hairbrush in the red bin", INSTRUCTION)
GROOT_CONFIG = {
    "model_type": "Gr00tN1d6",
    "architectures": ["Gr00tN1d6"],
    "model_name": "nvidia/Eagle-Block2A-2B-v2",
    "select_layer": 3,
    "action_horizon": 8,
    "num_inference_timesteps": 4,
    "num_timestep_buckets": 1000,
    "use_alternate_vl_dit": True,
    "attend_text_every_n_blocks": 2,
    "use_vlln": True,
    "add_pos_embed": True,
    "diffusion_model_cfg": {"num_layers": 8, "num_attention_heads": 4, "attention_head_dim": 16},
}
GROOT_PROCESSOR = {
    "image_crop_size": [230, 230],
    "image_target_size": [256, 256],
    "use_albumentations": True,
    "shortest_image_edge": 256,
    "crop_fraction": 0.95,
    "formalize_language": True,
    "use_percentiles": False,
    "clip_outliers": True,
    "apply_sincos_state_encoding": False,
    "use_relative_action": False,
}
GROOT_KEYS = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]


def qwen_file(path, marks=groot_policy.MARKS):
    """A tokenizer.json of bytes and pairs of them, as Qwen's, with the marks behind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS] * 20, trainer)
    tokenizer.add_special_tokens(list(marks))
    tokenizer.save(str(path))
    return path


def groot_folder(folder):
    write(folder / "model.safetensors", groot_recording.weights())
    rng = np.random.default_rng(2)
    statistics = {
        part: {
            key: {
                name: values.tolist()
                for name, values in zip(
                    ("min", "max"), np.sort(rng.normal(size=(2, widths.get(key, 1))), 0), strict=True
                )
            }
            for key in GROOT_KEYS
        }
        for part, widths in (("state", {"gripper": 2}), ("action", {}))
    }
    statistics["action"]["gripper"] = {"min": [0.0], "max": [1.0]}
    robot = {
        "video": {"delta_indices": [0], "modality_keys": ["image", "wrist_image"]},
        "state": {"delta_indices": [0], "modality_keys": GROOT_KEYS},
        "action": {"delta_indices": list(range(8)), "modality_keys": GROOT_KEYS},
        "language": {"delta_indices": [0], "modality_keys": ["annotation.human.action.task_description"]},
    }
    files = {
        "config": GROOT_CONFIG,
        "processor_config": {"processor_kwargs": {**GROOT_PROCESSOR, "modality_configs": {"libero_panda": robot}}},
        "statistics": {"libero_panda": statistics},
        "embodiment_id": {"libero_panda": 2, "gr1": 3},
    }
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    qwen_file(folder / "tokenizer.json")
    return folder


XVLA_CONFIG = XVLAConfig(
    image_size=64,
    vision_widths=(8, 12, 16, 24),
    vision_depths=(1, 1, 2, 1),
    vision_heads=(2, 3, 2, 4),
    vision_groups=(2, 2, 4, 3),
    window=5,
    vision_positions=4,
    vlm_width=32,
    vlm_mlp=56,
    vlm_depth=2,
    vlm_heads=4,
    vlm_positions=60,
    vocab=96,
    width=40,
    mlp=80,
    depth=3,
    heads=4,
    time_width=8,
    positions=96,
    domains=4,
    prompts=3,
    horizon=30,
)
XVLA_UNUSED = {
    "vlm.language_model.encoder.embed_tokens.weight": (96, 32),
    "vlm.multi_modal_projector.visual_temporal_embed.pos_idx_to_embed": (3, 24),
}


def florence(native):
    """The fields of ``florence_config`` in transformers' format, or in that of Microsoft's code."""
    vision = {"num_heads": [2, 3, 2, 4], "num_groups": [2, 2, 4, 3], "depths": [1, 1, 2, 1], "window_size": 5}
    if native:
        vision |= {"model_type": "florence_vision", "embed_dim": [8, 12, 16, 24], "max_position_embeddings": 4}
    else:
        vision |= {
            "model_type": "davit",
            "dim_embed": [8, 12, 16, 24],
            "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 4},
            "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
        }
    text = {"model_type": "bart" if native else "florence2_language", "encoder_attention_heads": 4}
    return {"vision_config": vision, "text_config": text, "projection_dim": 32}


def bart_file(path):
    """A tokenizer.json of whole words, with the marks of BART's."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {word: 4 + number for number, word in enumerate(dict.fromkeys(WORDS.split()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(path))
    return path


def xvla_weights(prefix=""):
    with torch.device("meta"):
        layout = xvla.published_layout(XVLA(XVLA_CONFIG))
    shapes = {name: part.shape for parts in layout.values() for name, part in parts.items()} | XVLA_UNUSED
    return {prefix + name: tensor for name, tensor in sampled(shapes).items()}


def xvla_config(native, **values):
    return {
        "florence_config": florence(native),
        "hidden_size": 40,
        "depth": 3,
        "num_heads": 4,
        "num_domains": 4,
        "len_soft_prompts": 3,
        "dim_time": 8,
        "max_len_seq": 96,
        "use_hetero_proj": False,
        "use_proprio": True,
        "action_mode": "ee6d",
        **values,
    }


def xvla_lerobot_folder(folder, old=False):
    made = xvla_weights("model.")
    write(folder / "model.safetensors", older(made) if old else made)
    config = xvla_config(
        not old,
        type="xvla",
        chunk_size=30,
        n_action_steps=10,
        num_denoising_steps=10,
        num_image_views=3,
        empty_cameras=1,
        resize_imgs_with_padding=[64, 64],
        input_features={
            "observation.images.image": {"type": "VISUAL", "shape": [3, 256, 256]},
            "observation.images.image2": {"type": "VISUAL", "shape": [3, 256, 256]},
            "observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 64, 64]},
            "observation.state": {"type": "STATE", "shape": [20]},
        },
        output_features={"action": {"type": "ACTION", "shape": [20]}},
    )
    (folder / "config.json").write_text(json.dumps(config))
    before = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        ("tokenizer_processor", {"max_length": 20, "padding": "max_length", "padding_side": "right"}),
        ("xvla_image_to_float", {}),
        ("xvla_imagenet_normalize", {}),
        ("xvla_add_domain_id", {"domain_id": 2}),
        ("device_processor", {}),
        ("normalizer_processor", None),
    ]
    after = [("unnormalizer_processor", None), ("device_processor", {})]
    write_processors(folder, before, after, "IDENTITY")
    bart_file(folder / "tokenizer.json")
    return folder


def xvla_folder(folder, old=True):
    """As the authors publish it, which is in the older layout."""
    made = xvla_weights("model.")
    made = older(made) if old else made
    write(folder / "model.safetensors", {name.removeprefix("model."): tensor for name, tensor in made.items()})
    (folder / "config.json").write_text(json.dumps(xvla_config(not old, model_type="xvla", num_actions=30)))
    images = {
        "do_resize": True,
        "size": {"height": 64, "width": 64},
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    bart_file(folder / "tokenizer.json")
    return folder


def fast_wam_folder(folder):
    """lerobot's folder, with the image encoder and the embedded instructions in it."""
    with torch.device("meta"):
        model = FastWAM(FAST_WAM_CONFIG)
    layouts = {"model": fast_wam.policy_layout(model), f"{VAE}/diffusion_pytorch_model": fast_wam.vae_layout(model)}
    unused = {
        "model": {f"{fast_wam.UNUSED_PREFIX}head.weight": (24, 48)},
        f"{VAE}/diffusion_pytorch_model": {"decoder.conv_in.weight": (16, 6, 3, 3, 3)},
    }
    for name, layout in layouts.items():
        shapes = {name: part.shape for parts in layout.values() for name, part in parts.items()} | unused[name]
        write(folder / f"{name}.safetensors", sampled(shapes))
    encoder = {
        "base_dim": 8,
        "dim_mult": [1, 2, 2],
        "num_res_blocks": 2,
        "temperal_downsample": [False, True],
        "is_residual": True,
        "patch_size": 2,
        "z_dim": 6,
        "latents_mean": [0.3, -0.2, 0.1, -0.4, 0.25, 0.0],
        "latents_std": [1.3, 0.7, 2.1, 0.9, 1.1, 0.8],
    }
    (folder / VAE / "config.json").write_text(json.dumps(encoder))
    config = {
        "type": "fastwam",
        "action_horizon": 8,
        "n_action_steps": 4,
        "num_inference_steps": 10,
        "context_len": 16,
        "image_size": [64, 128],
        "sigma_shift": None,
        "action_scheduler": {"train_shift": 5.0, "infer_shift": 5.0, "num_train_timesteps": 1000},
        "video_dit_config": {"num_heads": 2, "attn_head_dim": 24, "num_layers": 3},
        "action_dit_config": {"num_heads": 2, "attn_head_dim": 24, "num_layers": 3},
        "input_features": {
            "observation.images.wrist_image": {"type": "VISUAL", "shape": [3, 64, 64]},
            "observation.images.image": {"type": "VISUAL", "shape": [3, 64, 64]},
            "observation.state": {"type": "STATE", "shape": [STATE]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [ACTION]}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    before = [("rename_observations_processor", {}), ("to_batch_processor", {}), ("normalizer_processor", None)]
    after = [("unnormalizer_processor", None), ("fastwam_action_toggle_processor", {"toggle_dimensions": [-1]})]
    write_processors(folder, before, [*after, ("device_processor", {})], "MEAN_STD")
    generator = torch.Generator().manual_seed(3)
    texts = {text: torch.randn((number + 3, 24), generator=generator) for number, text in enumerate(TEXTS)}
    write(folder / "text_embeddings.safetensors", texts)
    return folder


OTHERS = {
    "groot_n1.6": groot_folder,
    "x_vla": xvla_folder,
    "x_vla, newer names": partial(xvla_folder, old=False),
    "lerobot, x_vla": xvla_lerobot_folder,
    "lerobot, x_vla, older names": partial(xvla_lerobot_folder, old=True),
    "fast_wam": fast_wam_folder,
}
"""Layouts of a single family."""
