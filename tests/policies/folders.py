"""Synthetic checkpoints in published layouts: every published key, at small dimensions, with random weights."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import sentencepiece
import torch
from parity import PALIGEMMA, write
from replan.policies.pi0 import Pi0, Pi0Config
from replan.policies.pi05 import Pi05, Pi05Config
from replan.policies.published.convention import convention_file
from replan.policies.published.pi0 import TIED, UNUSED, published_layout
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = "pick up the alphabet soup and place it in basket put hairbrush red bin Task State Action 0 1 2 3 4 5 6 7 8 9"
INSTRUCTION = "pick up the alphabet soup and place it in the basket"
DIMENSIONS = {**PALIGEMMA, "vocab": 96, "vision_heads": 16}
CONFIGS = {"pi0": Pi0Config(**DIMENSIONS), "pi0.5": Pi05Config(**DIMENSIONS)}
MODELS = {"pi0": Pi0, "pi0.5": Pi05}
STATE, ACTION = 8, 7


def weights(family, prefix=""):
    with torch.device("meta"):
        model = MODELS[family](CONFIGS[family])
    shapes = {name: part.shape for parts in published_layout(model).values() for name, part in parts.items()}
    shapes |= {name: (4, 4) for name in UNUSED - {TIED}}
    return {prefix + name: tensor for name, tensor in sampled(shapes).items()}


def sampled(shapes):
    """Weights of these shapes by name."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) * (1.2 * np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.3)
        for name, shape in shapes.items()
    }


def sentencepiece_file(path):
    """A model of the kind that PaliGemma has: spaces kept, the end of a line a token of its own."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 20),
        model_writer=written,
        vocab_size=90,
        hard_vocab_limit=False,
        user_defined_symbols=["\n"],
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    path.write_bytes(written.getvalue())
    return path


def fast_file(path):
    """A tokenizer.json of whole words, which begins a text as PaliGemma's does."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "\n": 4}
    vocabulary |= {word: 5 + number for number, word in enumerate(dict.fromkeys([*WORDS.split(), ":", ",", ";"]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Punctuation(), pre_tokenizers.Split("\n", "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer.save(str(path))
    return path


def openpi_folder(folder, family):
    write(folder / "model.safetensors", weights(family))
    rng = np.random.default_rng(0)
    tables = {}
    for key, channels in (("state", STATE), ("actions", ACTION)):
        values = rng.normal(size=(100, channels))
        tables[key] = {
            "mean": values.mean(0).tolist(),
            "std": values.std(0).tolist(),
            "q01": np.quantile(values, 0.01, 0).tolist(),
            "q99": np.quantile(values, 0.99, 0).tolist(),
        }
    assets = folder / "assets" / "physical-intelligence" / "libero"
    assets.mkdir(parents=True)
    (assets / "norm_stats.json").write_text(json.dumps({"norm_stats": tables}))
    sentencepiece_file(folder / "tokenizer.model")
    return folder


MODES = {"pi0": "MEAN_STD", "pi0.5": "QUANTILES"}


def write_processors(folder, before, after, mode, state=STATE, action=ACTION):
    """The files of lerobot's two processors; a step whose options are None scales by statistics."""
    rng = np.random.default_rng(1)
    statistics = {}
    for key, channels in (("observation.state", state), ("action", action)):
        values = rng.normal(size=(100, channels))
        for name, each in (
            ("mean", values.mean(0)),
            ("std", values.std(0)),
            ("min", values.min(0)),
            ("max", values.max(0)),
            ("q01", np.quantile(values, 0.01, 0)),
            ("q99", np.quantile(values, 0.99, 0)),
        ):
            statistics[f"{key}.{name}"] = torch.tensor(each, dtype=torch.float32)
    scaling = {"norm_map": {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode}}
    for processor, steps in (("policy_preprocessor", before), ("policy_postprocessor", after)):
        listed = []
        for number, (name, options) in enumerate(steps):
            listed.append({"registry_name": name, "config": scaling if options is None else options})
            if options is None:
                listed[-1]["state_file"] = f"{processor}_step_{number}_{name}.safetensors"
                write(folder / listed[-1]["state_file"], statistics)
        (folder / f"{processor}.json").write_text(json.dumps({"name": processor, "steps": listed}))


def lerobot_folder(folder, family, mode=None, views=("image", "image2"), state=STATE, action=ACTION):
    mode = mode or MODES[family]
    write(folder / "model.safetensors", weights(family, "model."))
    kind, own = {
        "pi0": ("pi0", ["pi0_new_line_processor"]),
        "pi0.5": ("pi05", ["pi05_prepare_state_tokenizer_processor_step"]),
    }[family]
    config = {
        "type": kind,
        "chunk_size": DIMENSIONS["horizon"],
        "n_action_steps": 4,
        "num_inference_steps": 10,
        "input_features": {
            **{f"observation.images.{view}": {"type": "VISUAL", "shape": [3, 256, 256]} for view in views},
            "observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 224, 224]},
            "observation.state": {"type": "STATE", "shape": [state]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    before = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        *((name, {}) for name in own),
        ("tokenizer_processor", {"max_length": 64}),
        ("normalizer_processor", None),
        ("device_processor", {"device": "cpu"}),
    ]
    write_processors(
        folder, before, [("unnormalizer_processor", None), ("device_processor", {"device": "cpu"})], mode, state, action
    )
    fast_file(folder / "tokenizer.json")
    return folder


LAYOUTS = {"openpi": openpi_folder, "lerobot": lerobot_folder}


def named(folder, **options):
    """The folder as a policy's name, with what it does not say."""
    return ":".join([str(folder), *(f"{key}={value}" for key, value in {"convention": "libero", **options}.items())])


def edit(file, change):
    """Changes a JSON file."""
    plain = json.loads(file.read_text())
    change(plain)
    file.write_text(json.dumps(plain))


def rename(weights, old, new):
    """Weights of which one has another name."""
    (name,) = [each for each in weights if each.endswith(old)]
    return {new if each == name else each: value for each, value in weights.items()}


def scene():
    """An observation of LIBERO."""
    rng = np.random.default_rng(0)
    return {
        "agentview": rng.integers(0, 256, (256, 256, 3), np.uint8),
        "wrist": rng.integers(0, 256, (256, 256, 3), np.uint8),
        "state": rng.normal(size=STATE).astype(np.float32),
        "instruction": INSTRUCTION,
    }


def sharded(folder, parts=2):
    """Splits the weights of a folder as large checkpoints are."""
    from replan.policies.published.reader import open_source

    with open_source(folder) as source:
        names = source.names
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    where = {name: f"model-{number % parts:05}.safetensors" for number, name in enumerate(names)}
    for shard in set(where.values()):
        write(folder / shard, {name: tensors[name] for name in names if where[name] == shard})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def with_horizon(family, horizon):
    return replace(CONFIGS[family], horizon=horizon)


def convention(tmp_path, *changes):
    """A convention like LIBERO's, with these texts replaced by others."""
    text = convention_file("libero").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.toml").write_text(text)
    return tmp_path / "mine.toml"
