"""Random tiny policies of the families whose prefixes offer rows, one with a draft, and `rounds` by name."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replan.accel import library
from replan.accel.flash.draft import Draft, DraftConfig, draft_path, save_draft
from replan.accel.rmuscle.recording import RATIOS, Recording
from replan.policies import fast_wam, pi05
from replan.policies.policy import Policy, load_policy

sys.path.insert(0, str(Path(__file__).parent))

from executions import EPISODES, INSTRUCTION, frames, record


@pytest.fixture(scope="session")
def wam(policy, randomised):
    config = replace(fast_wam.TINY, depth=3, width=48, mlp=64, heads=2, action_width=32, action_mlp=48, steps=3)
    return Policy("wam", Path("wam"), (), randomised(fast_wam.FastWAM(config)), policy.processor, {})


@pytest.fixture(scope="session")
def pi05_policy(policy, randomised):
    config = replace(pi05.TINY, vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
    return Policy("pi05", Path("pi05"), (), randomised(pi05.Pi05(config)), policy.processor, {})


@pytest.fixture(scope="session")
def flash_policy(policy):
    """The policy with a random draft beside it."""
    draft, generator = Draft(DraftConfig.of(policy.model.config)), torch.Generator().manual_seed(3)
    draft.start_from(policy.model.vlm[0], generator)
    with torch.no_grad():  # so that nothing hides behind a zero
        draft.norm.weight.normal_(0, 0.5, generator=generator)
        draft.head.bias.normal_(0, 0.1, generator=generator)
    save_draft(draft_path(policy.path), draft, {}, policy.files)
    return policy


@pytest.fixture(scope="session")
def muscular(policy, tmp_path_factory):
    """A policy with a library next to it."""
    path = tmp_path_factory.mktemp("muscle") / "random.safetensors"
    shutil.copy(policy.path, path)
    policy, recording = load_policy(path), Recording()
    episodes = [
        library.Episode(instruction, f"{instruction} {number}", record(policy, recording, frames(number))[0])
        for instruction in (INSTRUCTION, "put the dog in the red bin")
        for number in range(EPISODES if instruction == INSTRUCTION else 1)
    ]
    library.write(
        library.library_path(path),
        episodes,
        policy.files,
        ratios=RATIOS,
        anchors=recording.anchors,
        neurons=recording.neurons,
    )
    return policy
