"""Writes groot_tiny.safetensors, for test_groot_parity.py, from a recording of the public GR00T N1.6.

The recording cannot be made again with one command: the public implementation is not on a package index and needs
flash-attn. It was run once, on a CPU, in float32, with attention per image, at a tiny size; its file (5 MB) holds
``weights.NAME``, ``input.NAME``, ``output.NAME`` and the numbers of heads.

Nearly all of that is samples, which torch makes again bit for bit, so that a file of 60 kB is left:

* everything but the noise comes from seed 1, tensor after tensor: parameters in the model's order, of N(0, 1.2^2 / last
  dimension) for matrices and N(0, 0.3^2) for vectors, plus 1 for weights with ``norm`` in their name; then two images
  of N(0, 0.5^2) and the state of N(0, 1). The noise comes from seed 7. ``embed_tokens`` is ``lm_head``;
* metadata ``sampled``: names and shapes in the order of sampling;
* ``inputs/...``: the state and the noise as recorded, so that a torch that samples other numbers is noticed, the tokens
  and the embodiment;
* ``expected/...``: features (behind the language model's last norm) and actions.

Run it with the recording's path. It fails if a sample is another one.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
IMAGES = ("pixel_values.0", "pixel_values.1")


def sampled(order: list[tuple[str, list[int]]]) -> dict[str, Tensor]:
    """Returns the tensors of names and shapes in the order of sampling."""
    generator = torch.Generator().manual_seed(1)
    made = {}
    for name, shape in order:
        tensor = torch.randn(shape, generator=generator)
        if name in (*IMAGES, "state"):
            tensor *= 0.5 if name in IMAGES else 1.0
        elif len(shape) > 1:
            tensor *= 1.2 / math.sqrt(shape[-1])
        else:
            tensor = tensor * 0.3 + (name.endswith("weight") and "norm" in name)
        made[name] = tensor
    return made


def find_order(recording: dict[str, Tensor]) -> list[tuple[str, list[int]]]:
    """Returns in which order seed 1 gives the recorded tensors; a tensor is known by its correlation with a sample."""
    generator, order = torch.Generator().manual_seed(1), []
    left = {name: tensor for name, tensor in recording.items() if name != "noise" and "embed_tokens" not in name}
    while left:
        state = generator.get_state()
        for name, tensor in left.items():
            generator.set_state(state)
            pair = torch.stack([torch.randn(tensor.shape, generator=generator).flatten(), tensor.flatten()])
            if torch.corrcoef(pair)[0, 1] > 0.9999:
                order.append((name, list(tensor.shape)))
                break
        else:
            raise SystemExit(f"no tensor comes after {order[-1:]}")
        del left[order[-1][0]]
    return order


def main(recording: Path) -> None:
    """Reduces a recording."""
    with safe_open(recording, "pt") as file:
        given = {name.partition(".")[2]: file.get_tensor(name) for name in file.keys()}
        wanted = {name.partition(".")[2] for name in file.keys() if not name.startswith("output.")}
    order = find_order({name: given[name] for name in wanted if given[name].is_floating_point()})
    for name, tensor in sampled(order).items():
        if (difference := (tensor - given[name]).abs().max()) > 1e-6:
            raise SystemExit(f"{name} is another sample, by {difference}")
    kept = {
        "inputs/state": given["state"],
        "inputs/noise": given["noise"],
        "inputs/tokens": given["input_ids"],
        "inputs/embodiment": given["embodiment_id"],
        "expected/features": given["backbone_features"],
        "expected/actions": given["action_pred"],
    }
    save_file(kept, HERE / "groot_tiny.safetensors", {"sampled": json.dumps(order)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
