"""What the tables of published names share: prefixes, tied embeddings, and layers that are alike."""

from __future__ import annotations

from collections.abc import Mapping

from .reader import Source

SIGLIP_LAYER = {
    "attention_norm": ("layer_norm1",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.out_proj",),
    "ffn_norm": ("layer_norm2",),
    "up": ("mlp.fc1",),
    "down": ("mlp.fc2",),
}
"""Modules of :class:`~replan.policies.siglip.SigLIPLayer`, and the published modules that each is made of."""

_LEROBOT = "model."


def without_prefix(source: Source) -> tuple[dict[str, str], bool]:
    """Returns a file's key for each name without lerobot's prefix, and whether the file has that prefix."""
    prefixed = sum(name.startswith(_LEROBOT) for name in source.names)
    lerobot = 2 * prefixed > len(source.names)  # a few other names do not hide whose file it is
    return {name.removeprefix(_LEROBOT if lerobot else ""): name for name in source.names}, lerobot


def untie(names: dict[str, str], embedding: str, other: str) -> None:
    """Lets an embedding be read under its other name.

    safetensors stores shared memory once, so a file may have only that one.
    """
    if embedding not in names and other in names:
        names[embedding] = names[other]


def layer_names(ours: str, theirs: str, depth: int, layer: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns the published modules that each module of a stack of layers is made of.

    Args:
        ours: Name of our stack.
        theirs: Name of the published one.
        depth: Layers.
        layer: The same within a layer.
    """
    return {
        f"{ours}.{number}.{module}": tuple(f"{theirs}.{number}.{part}" for part in parts)
        for number in range(depth)
        for module, parts in layer.items()
    }


def count_layers(source: Source, prefix: str) -> int:
    """Returns how many layers a stack has whose names begin with a prefix: one more than the largest number."""
    numbers = [name.removeprefix(prefix).partition(".")[0] for name in source.names if name.startswith(prefix)]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
