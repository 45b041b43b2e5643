"""What every test may rely on: one thread a process, an OpenGL, a random tiny policy loaded as users load theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import replan.envs  # noqa: F401 - chooses an OpenGL before MuJoCo is imported
import torch
from replan.policies import checkpoint
from replan.policies.pi0 import TINY, Pi0, Pi0Processor
from replan.policies.policy import load_policy

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

CONFIG = replace(TINY, vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
PROCESSOR = Pi0Processor(
    cameras=("third", "wrist"),
    image_size=64,
    words=("<pad>", "bin", "blue", "dog", "hairbrush", "in", "put", "red", "the", "toy"),
    max_tokens=8,
    state_mean=(0.1,) * 11,
    state_std=(2.0,) * 11,
    action_mean=(0.0, 0.1, -0.1, 0.0, 0.0, 0.0, -0.2),
    action_std=(0.5, 0.4, 0.3, 1.0, 1.0, 0.2, 0.9),
    gripper=(6,),
    replan=10,
)


def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Samples every parameter, so that nothing hides behind a zero or a one; returns the model, to be evaluated."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.2 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.normal_(0, scale, generator=generator)
    return model.requires_grad_(False).eval()


def write_random_policy(path: Path, seed: int = 0) -> Path:
    model = randomise(Pi0(CONFIG), seed)
    header = checkpoint.Header("pi0", asdict(CONFIG), asdict(PROCESSOR), {"marks": ["random weights"]})
    checkpoint.save(path, header, model, torch.float32)
    return path


@pytest.fixture(scope="session")
def install(tmp_path_factory):
    """Returns a function that installs packages of tests/third_party and returns the folder that they are in."""

    def install_into_a_folder(*packages: str) -> Path:
        target = tmp_path_factory.mktemp("site")
        # From copies, so that building writes nothing into the tree.
        sources = [tmp_path_factory.mktemp("source") / package for package in packages]
        for source in sources:
            shutil.copytree(Path(__file__).parent / "third_party" / source.name, source)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command = [*pip, "--no-deps", "--no-build-isolation", "--target", target, *sources]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target

    return install_into_a_folder


@pytest.fixture(scope="session")
def randomised():
    return randomise


@pytest.fixture(scope="session")
def policy_file(tmp_path_factory):
    return write_random_policy(tmp_path_factory.mktemp("policy") / "random.safetensors")


@pytest.fixture(scope="session")
def policy(policy_file):
    return load_policy(policy_file)


@pytest.fixture
def observation():
    rng = np.random.default_rng(0)
    return {
        "third": rng.integers(0, 256, (64, 64, 3), np.uint8),
        "wrist": rng.integers(0, 256, (64, 64, 3), np.uint8),
        "state": rng.normal(size=11).astype(np.float32),
        "instruction": "put the hairbrush in the red bin",
    }
