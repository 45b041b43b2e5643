"""Published folders of GR00T N1.6 as policies: the processor of one robot, with NVIDIA's chat and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ..groot_processor import PLACE, GrootProcessor
from ..stored import Stored
from ..tokens import find_tokenizer, marks
from ..weights import CheckpointError
from . import groot_folder
from .convention import Convention
from .groot import fill
from .processor import Published, stored
from .reader import Source

TOKENIZER = (
    "that of GR00T N1.6 is Qwen's with the marks of Eagle-Block2A-2B-v2, a folder in NVIDIA's code, of which "
    "transformers' AutoTokenizer makes a tokenizer.json with save_pretrained"
)
"""Where its tokenizer is found."""

PAD = "<|endoftext|>"
MARKS = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", PLACE, PAD)
"""Marks of the chat, and what fills it up."""

ROOM = 256
"""Most tokens of a prompt besides the places of the visual tokens; the public code has no limit."""


@dataclass(frozen=True, kw_only=True)
class PublishedGroot(Published, GrootProcessor):
    """Conventions of a published GR00T N1.6: its prompt has the places of the visual tokens in it.

    Attributes:
        planned: Actions of a chunk that are the robot's; the model gives more, which nothing was trained for.
    """

    planned: int

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """See :class:`~replan.policies.standardised.Standardised`.

        Raises:
            ValueError: There are more actions than the robot plans.
        """
        if chunk.shape[-2] > self.planned:
            raise ValueError(
                f"the robot plans {self.planned} actions, and {chunk.shape[-2]} would be executed: write --window "
                f"{self.planned} or less"
            )
        return super().actions(chunk, state)


def open_groot(source: Source, folder: Path, convention: Convention, tokenizer: str) -> Stored:
    """Returns a published folder as a policy; see :func:`.paligemma.open_paligemma`.

    Raises:
        CheckpointError: A file, a statistic, the robot or a mark of the tokenizer is missing, or the folder and the
            convention do not fit each other.
    """
    facts = convention.groot
    if facts is None:
        raise CheckpointError(f"{folder} is a GR00T N1.6, and the convention has no [groot]")
    robot = groot_folder.read_robot(folder, facts.robot)
    for what, groups, named in (("state", robot.state, facts.state), ("action", robot.action, facts.action)):
        found = tuple(name for name, width in groups for _ in range(width))
        if found != named:
            raise CheckpointError(
                f"{folder} has {', '.join(found)} as the {what} of {facts.robot}, and the convention {', '.join(named)}"
            )
    if facts.replan > robot.horizon:
        raise CheckpointError(
            f"{folder} plans {robot.horizon} actions of {facts.robot}, and the convention executes {facts.replan}"
        )
    path = find_tokenizer(folder, tokenizer, TOKENIZER)
    tokens = marks(path, MARKS, TOKENIZER)
    config = groot_folder.read_config(folder, source, tokens[PLACE])
    if max(tokens.values()) >= config.vocab:
        raise CheckpointError(
            f"the tokenizer {path} has tokens up to {max(tokens.values())}, and the policy {config.vocab} of them"
        )
    cameras = tuple(map(convention.view, robot.cameras))
    values = dict(
        cameras=cameras,
        image_size=config.image_size,
        words=(),
        max_tokens=len(cameras) * config.tokens_per_view + ROOM,
        state_mean=robot.state_mean,
        state_std=robot.state_std,
        state_clip=robot.state_clip,
        action_mean=robot.action_mean,
        action_std=robot.action_std,
        action_clip=robot.action_clip,
        gripper=convention.gripper,
        replan=facts.replan,
        mirror=convention.mirror,
        robot=robot.index,
        image_token=config.image_token,
        tokens_per_view=config.tokens_per_view,
        chat=True,
        formal=robot.formal,
        edge=robot.edge,
        crop=robot.crop,
        tokenizer=path,
        pad=tokens[PAD],
        inverted=facts.inverted,
        planned=robot.horizon,
    )
    files = [*groot_folder.files(folder), path]
    layout = f"Isaac GR00T N1.6, {facts.robot}"
    return stored(folder, layout, "groot_n1.6", config, (PublishedGroot, values), files, fill)
