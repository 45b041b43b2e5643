"""Writes processors.safetensors: what lerobot's processors make of observations and of chunks, for test_processors.py.

The reference needs the environment of make_xvla.py. A line of it is in the syntax of Python 3.12 and is rewritten here.
The file holds, for each of ``x_vla``, ``fast_wam`` and ``pi05``:

* ``NAME/inputs/...``: what the simulator gives, images uint8 [2, 96, 96, 3] as LIBERO renders them, upside down;
* ``NAME/expected/...``: images and state as the model reads them, and actions as the simulator takes them, of a chunk;
* ``NAME/statistics/...``: those that the steps were given, by lerobot's names;
* metadata ``prompt``: the text of pi0.5.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Generic

import torch
from safetensors.torch import save_file

ROOT = Path(str(importlib.metadata.distribution("lerobot").locate_file("lerobot")))
SIDE, NATIVE = 64, 96


def import_lerobot() -> None:
    """Makes single modules of lerobot importable: the package around them needs a robot's worth of others."""
    packages = ("", ".configs", ".utils", ".processor", ".policies", ".policies.common", ".policies.xvla")
    for name in (*packages, ".policies.fastwam", ".policies.pi05"):
        module = sys.modules[f"lerobot{name}"] = types.ModuleType(f"lerobot{name}")
        module.__path__ = [str(ROOT.joinpath(*name.split(".")))]

    def only(name: str, **values: object) -> None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)

    nothing = lambda *args, **kwargs: None  # noqa: E731
    only("lerobot.utils.import_utils", _transformers_available=False, require_package=nothing)
    only("lerobot.utils.hub", HubMixin=object)
    only("lerobot.utils.device_utils", get_safe_dtype=nothing)
    vars(sys.modules["lerobot.configs"]).update(vars(importlib.import_module("lerobot.configs.types")))
    sys.modules["lerobot.configs"].PreTrainedConfig = object
    source = (ROOT / "processor/pipeline.py").read_text()
    pipeline = sys.modules["lerobot.processor.pipeline"] = types.ModuleType("lerobot.processor.pipeline")
    pipeline.__package__ = "lerobot.processor"
    pipeline.Generic = Generic
    source = source.replace("Pipeline[TInput, TOutput](HubMixin)", "Pipeline(Generic[TInput, TOutput])")
    exec(compile(source, "pipeline.py", "exec"), vars(pipeline))
    processor = sys.modules["lerobot.processor"]
    normalise = importlib.import_module("lerobot.processor.normalize_processor")
    for each in (pipeline, normalise):
        vars(processor).update({name: value for name, value in vars(each).items() if not name.startswith("__")})
    unused = ("TokenizerProcessorStep", "AbsoluteActionsProcessorStep", "RelativeActionsProcessorStep")
    vars(processor).update(dict.fromkeys(unused))
    vars(processor).update(make_default_policy_processor_steps=nothing, make_policy_processor_pipelines=nothing)
    for policy, names in (("xvla", ("XVLAConfig",)), ("fastwam", ("FastWAMConfig",)), ("pi05", ("PI05Config",))):
        only(f"lerobot.policies.{policy}.configuration_{policy}", **dict.fromkeys(names, object))


def function(path: str, *names: str, **values: object) -> list:
    """Returns functions of a module that cannot be imported whole."""
    tree = ast.parse((ROOT / path).read_text())
    tree.body = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name in names]
    space = {"torch": torch, "Tensor": torch.Tensor, "F": torch.nn.functional, "FastWAMConfig": object, **values}
    exec(compile(tree, path, "exec"), space)
    return [space[name] for name in names]


def statistics(generator: torch.Generator, state: int) -> dict:
    """Returns random statistics by lerobot's names."""
    made = {}
    for key, channels in (("observation.state", state), ("action", 7)):
        low, high = torch.randn((2, channels), generator=generator).sort(0).values
        made[key] = {"mean": low, "std": high - low, "q01": low - 0.1, "q99": high + 0.1}
    return made


def main() -> None:
    """Runs the reference and writes the file next to this script."""
    import_lerobot()
    types_ = sys.modules["lerobot.configs"]
    normaliser, unnormaliser = (
        getattr(sys.modules["lerobot.processor"], f"{name}ProcessorStep") for name in ("Normalizer", "Unnormalizer")
    )
    key = importlib.import_module("lerobot.lerobot_types").TransitionKey
    generator = torch.Generator().manual_seed(30)
    raw = torch.randint(0, 256, (2, NATIVE, NATIVE, 3), generator=generator, dtype=torch.uint8)
    views = {
        f"observation.images.{name}": raw[i].permute(2, 0, 1)[None] / 255 for i, name in enumerate(("image", "image2"))
    }
    tensors: dict[str, torch.Tensor] = {}

    def scale(table: dict, mode: str, state: torch.Tensor, chunk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        feature, kinds, norm = types_.PolicyFeature, types_.FeatureType, types_.NormalizationMode[mode]
        features = {
            "observation.state": feature(kinds.STATE, tuple(state.shape[1:])),
            "action": feature(kinds.ACTION, (7,)),
        }
        modes = {kinds.STATE: norm, kinds.ACTION: norm}
        seen = normaliser(features, modes, table)({key.OBSERVATION: {"observation.state": state}})
        native = unnormaliser(features, modes, table)({key.ACTION: chunk})
        return seen[key.OBSERVATION]["observation.state"], native[key.ACTION]

    def keep(name: str, table: dict, inputs: dict, expected: dict) -> None:
        for group, values in (("inputs", inputs), ("expected", expected)):
            tensors.update({f"{name}/{group}/{key}": value.contiguous().clone() for key, value in values.items()})
        for each, values in table.items():
            tensors.update({f"{name}/statistics/{each}.{key}": value.contiguous() for key, value in values.items()})

    # X-VLA: the environment's step, ImageNet's colours, the policy's own scaling, and its steps behind the policy.
    steps = importlib.import_module("lerobot.policies.xvla.processor_xvla")
    (fit,) = function("policies/common/vla_utils.py", "resize_with_pad")
    rotation = torch.linalg.qr(torch.randn((1, 3, 3), generator=generator)).Q
    rotation *= torch.linalg.det(rotation)
    position = torch.randn((1, 3), generator=generator)
    observed = {**views, "observation.robot_state": {"eef": {"pos": position, "mat": rotation}}}
    observed = steps.LiberoProcessorStep()._process_observation(observed)
    transition = steps.XVLAImageToFloatProcessorStep()({key.OBSERVATION: observed})
    transition = steps.XVLAImageNetNormalizeProcessorStep()(transition)
    images = [fit(transition[key.OBSERVATION][name], SIDE, SIDE, pad_value=0.0) for name in views]
    chunk = torch.randn((6, 20), generator=generator)
    squashed = chunk.clone()
    squashed[:, [9, 19]] = squashed[:, [9, 19]].sigmoid()  # EE6DActionSpace.postprocess
    native = steps.XVLARotation6DToAxisAngleProcessorStep()({key.ACTION: squashed})[key.ACTION]
    keep(
        "x_vla",
        {},
        {"images": raw, "position": position, "rotation": rotation, "chunk": chunk},
        {"images": torch.cat(images), "state": observed["observation.state"], "actions": native},
    )

    # Fast-WAM: means and deviations, views side by side, and grippers that are toggled.
    toggle = importlib.import_module("lerobot.policies.fastwam.processor_fastwam").FastWAMActionToggleProcessorStep
    resize, stack = function("policies/fastwam/modeling_fastwam.py", "_resize_frames", "_stack_video_from_images")
    table = statistics(generator, 8)
    state, chunk = torch.randn((1, 8), generator=generator), torch.randn((6, 7), generator=generator)
    seen, native = scale(table, "MEAN_STD", state, chunk)
    config = types.SimpleNamespace(image_size=(SIDE, 2 * SIDE), model_video_frames=1)
    stack.__globals__["_resize_frames"] = resize
    turned = {name: view.flip((2, 3)) for name, view in views.items()}  # lerobot's LIBERO turns both views
    frame = stack(turned, config)[:, :, 0] * 2 - 1
    keep(
        "fast_wam",
        table,
        {"images": raw, "state": state, "chunk": chunk},
        {"frame": frame, "state": seen, "actions": toggle([-1]).action(native)},
    )

    # pi0.5: quantiles, and the state in the prompt.
    step = importlib.import_module("lerobot.policies.pi05.processor_pi05").Pi05PrepareStateTokenizerProcessorStep
    table = statistics(generator, 8)
    state, chunk = torch.randn((1, 8), generator=generator), torch.randn((6, 7), generator=generator)
    seen, native = scale(table, "QUANTILES", state, chunk)
    about = {key.OBSERVATION: {"observation.state": seen}, key.COMPLEMENTARY_DATA: {"task": ["put_it in\nthe bin "]}}
    prompt = step()(about)[key.COMPLEMENTARY_DATA]["task"][0]
    keep("pi05", table, {"state": state, "chunk": chunk}, {"state": seen, "actions": native})
    save_file(tensors, Path(__file__).with_name("processors.safetensors"), {"prompt": prompt})


if __name__ == "__main__":
    main()
