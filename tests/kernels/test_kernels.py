"""Kernels in processes of their own: Triton decides on import whether it interprets, and does not survive OpenGL."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TOOL = HERE.parent.parent / "tools" / "kernels.py"
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is an extra: replan[kernels]")


def run(*command: str | Path, **environment: str) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "PYTEST_"))}
    done = subprocess.run([sys.executable, *command], env=given | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_triton
@pytest.mark.parametrize(
    "interpreted",
    [
        pytest.param("1", id="interpreter"),
        pytest.param(
            "0", id="gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
        ),
    ],
)
@pytest.mark.parametrize("file", ["agreement.py", "backend.py"])
def test_kernels_agree_with_their_references(file: str, interpreted: str) -> None:
    run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", HERE / file, TRITON_INTERPRET=interpreted)


@needs_triton
def test_the_choice_of_a_tile_is_kept_on_disk(tmp_path: Path) -> None:
    for tuned in "01":
        run(
            *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", HERE / "tuning.py"),
            **{"REPLAN_TUNED": tuned, "TRITON_CACHE_DIR": str(tmp_path)},
        )


def test_triton_is_refused_in_one_sentence_without_a_gpu(tmp_path: Path) -> None:
    command = ["replan", "eval", "--suite", "conveyor", "--policy", "pi0-tiny", "--method", "triton", "--episodes", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [Path(sys.executable).with_name(command[0]), *command[1:], "--out", tmp_path / "run"],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    missing = "'triton' needs the package triton, which is not here: pip install 'replan[kernels]'"
    no_gpu = "'triton' needs a CUDA device, and the policy is on cpu: --device cuda"
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: {no_gpu if importlib.util.find_spec('triton') else missing}" in done.stderr


@needs_triton
def test_resources_are_those_of_the_table(tmp_path: Path) -> None:
    import triton

    if f'triton = "{triton.__version__}"' not in (TOOL.parent.parent / "kernels" / "resources.toml").read_text():
        pytest.skip(f"the table is of another Triton than {triton.__version__}")
    run(TOOL, "--check", "90", TRITON_CACHE_DIR=str(tmp_path))
