"""The tree as a package: the wheel is whole, the arrows between folders hold, every module and its examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from replan.envs import INSTALLS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
# folder -> the folders it may import
ARROWS: dict[str, set[str]] = {
    "files": set(),
    "kernels": set(),
    "envs": {"files"},
    "results": {"files"},
    "policies": {"files", "kernels"},
    "accel": {"policies", "kernels"},
    "eval": {"files", "kernels", "envs", "results", "policies", "accel"},
}
SOURCES = sorted(path.relative_to(ROOT) for folder in ARROWS for path in (ROOT / folder).rglob("*.py"))
# What a package needs beside its Python files: all of it but libraries of executions, which lie next to policies.
DATA = sorted(
    path.relative_to(ROOT)
    for folder in ARROWS
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix not in {".py", ".pyc"} and not path.name.startswith(".")
    if path.parent.suffix != ".library"
)


def folders_imported(source: Path, text: str) -> set[str]:
    """Root folders that a file imports, by whatever spelling."""
    package = ["replan", *source.parent.parts]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")] if node.module else base
            names = [".".join([*module, alias.name]) for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("replan.")}
    return found


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("eval/cli.py", "from ..results import store", {"results"}),
        ("eval/cli.py", "from .. import results, accel", {"results", "accel"}),
        ("eval/cli.py", "from . import cells", {"eval"}),
        ("accel/flash/draft.py", "from ...policies.pi0 import Pi0", {"policies"}),
        ("envs/a.py", "def late():\n    import replan.eval.cli", {"eval"}),
        ("envs/a.py", "from replan import policies", {"policies"}),
        ("envs/a.py", "import numpy, results", set()),
    ],
)
def test_imports_are_seen_in_every_spelling(source: str, text: str, expected: set[str]) -> None:
    assert folders_imported(Path(source), text) == expected


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_no_arrow_runs_back(source: Path) -> None:
    folder = source.parts[0]
    imported = folders_imported(source, (ROOT / source).read_text(encoding="utf-8"))
    assert imported <= ARROWS[folder] | {folder}


def test_environments_are_made_in_envs_and_eval_only() -> None:
    making = {source.parts[0] for source in SOURCES if "gymnasium.make" in (ROOT / source).read_text(encoding="utf-8")}
    assert making == {"envs", "eval"}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_module_imports_and_its_examples_run(source: Path) -> None:
    name = ".".join(["replan", *source.with_suffix("").parts]).removesuffix(".__init__")
    if name.endswith(".__main__"):
        return
    if name == "replan.accel.fused" or (name.startswith("replan.kernels.")):
        pytest.skip("imports Triton, an extra: tests/kernels imports it in a process of its own")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, where no earlier build can help it."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in [*SOURCES, *DATA, Path("pyproject.toml"), Path("LICENSE")]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, tree]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("replan-*.whl"))


def test_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(Path("replan") / source) for source in [*SOURCES, *DATA]}
    assert wanted - inside == set()
    stray = {name for name in inside if not name.startswith("replan") or "tests" in name}
    assert stray == set()


CODE = (
    "from replan.envs import SUITES; from replan.eval.registry import Registry; registry = Registry(); "
    "print(*map(registry.suite_code, SUITES.values()), registry.policy('pi0-tiny').code, "
    "registry.method('flash', 'pi0-tiny').code, sep=chr(10))"
)


def test_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    # -S leaves the editable install out; the dependencies are put back by hand.
    site = [path for path in sys.path if path.endswith("site-packages")]
    code = f"import replan.results.schema as schema; print(schema.__file__); {CODE}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *site])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, *digests = done.stdout.splitlines()
    assert Path(file) == tmp_path / "replan/results/schema.py"
    # It knows which code it is: its runs are compared with those of the checkout.
    here = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert digests == here.stdout.splitlines()


def test_package_list_names_every_package_once() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(listed))
    assert set(listed) == {".".join(["replan", *source.parent.parts]) for source in SOURCES}


def test_lock_pins_every_dependency() -> None:
    """Each one exactly, at a release that pyproject allows, and without anything that only one machine has."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    pinned = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and "+" not in specifier.version and requirement.url is None, line
        pinned[canonicalize_name(requirement.name)] = specifier.version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["dev"], *extras["video"]]:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


LOCKS = {install.name: install.lock for install in INSTALLS.values() if install.lock is not None}


def test_every_lock_file_belongs_to_a_suite() -> None:
    assert set(LOCKS.values()) == set((ROOT / "envs").glob("*/requirements.lock"))


@pytest.mark.parametrize("suite", LOCKS)
def test_lock_of_a_suite_pins_its_extra_by_hash_and_agrees_with_the_main_lock(suite: str) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    def requirements(file: Path) -> list[tuple[Requirement, int]]:
        lines = [line for line in file.read_text().replace("\\\n", "").splitlines() if not line.startswith("#")]
        return [(Requirement(line.split(" --hash")[0]), line.count("--hash=sha256:")) for line in lines]

    main = {canonicalize_name(r.name): r.specifier for r, _ in requirements(ROOT / "requirements.lock")}
    pinned = {}
    for requirement, hashes in requirements(LOCKS[suite]):
        (specifier,) = requirement.specifier
        name = canonicalize_name(requirement.name)
        assert specifier.operator == "==" and hashes, requirement
        if requirement.marker is None or requirement.marker.evaluate({"python_full_version": "3.11.7"}):
            pinned[name] = specifier.version
            assert main.get(name, requirement.specifier) == requirement.specifier
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # A suite of which every package is installed without its own requirements has no extra.
    for text in project["optional-dependencies"].get(suite, []):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


def test_command_line_is_installed() -> None:
    command = Path(sys.executable).with_name("replan")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "eval" in done.stdout and "board" in done.stdout
