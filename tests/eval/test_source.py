"""Code that decides an episode: an edit of it makes another measurement, and an edit of anything else does not."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil

import pytest
from fake import Edited, EditedLater, FakeRegistry
from replan.envs import SUITES
from replan.eval import source
from replan.eval.evaluate import evaluate
from replan.eval.registry import Files, Registry
from replan.eval.spec import BadInput, make_spec
from replan.results.store import Store

ACTS = ("dense", "few_step", "flash", "dp_cache", "flash+dp_cache")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the source tree that may be edited; digests are taken of it."""
    root = tmp_path / "tree"
    for folder in ("accel", "envs", "eval", "policies", "results"):
        shutil.copytree(
            source.ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "checkpoints")
        )
    monkeypatch.setattr(source, "ROOT", root)
    return root


def digests():
    registry = Registry()
    suites = {name: registry.suite_code(SUITES[name]) for name in ("conveyor", "packing", "libero_object")}
    return {**suites, "pi0": registry.policy("pi0-tiny").code} | {
        method: registry.method(method, "pi0-tiny").code for method in ACTS
    }


DECIDES = {
    "envs/conveyor/physics.py": {"conveyor", "packing"},  # packing's arm and belt
    "envs/packing/task.py": {"packing"},
    "envs/libero/simulator.py": {"libero_object"},
    "envs/world.py": {"conveyor", "packing", "libero_object"},
    "envs/realtime.py": {"conveyor", "packing", "libero_object"},
    "eval/worker.py": {"conveyor", "packing", "libero_object"},
    "eval/clock.py": {"conveyor", "packing", "libero_object"},
    "policies/gemma.py": {"pi0", "flash", "flash+dp_cache"},  # whose draft is made of its layers
    "policies/call.py": {"pi0"},
    "policies/agent.py": {"pi0"},
    "accel/few_step.py": {"few_step"},
    "accel/flash/draft.py": {"flash", "flash+dp_cache"},
    "accel/dp_cache.py": {"dp_cache", "flash+dp_cache"},
    "accel/flash/training.py": set(),
    "policies/training/train.py": set(),
    "results/tables.py": set(),
    "eval/cli.py": set(),
}


def test_an_edit_changes_the_code_of_what_it_decides_and_of_nothing_else(tree):
    before = digests()
    for file, decided in DECIDES.items():
        with (tree / file).open("a") as text:
            text.write("\nEDITED = True\n")
        after = digests()
        assert {name for name in before if before[name] != after[name]} == decided, file
        before = after


def test_data_beside_the_code_of_a_suite_belongs_to_it(tree):
    before = digests()
    (tree / "envs/conveyor/mesh.obj").write_text("v 0 0 0\n")
    assert {name for name, code in digests().items() if before[name] != code} == {"conveyor"}


def test_of_another_package_every_file_counts_wherever_it_is_installed(tmp_path, monkeypatch):
    def write(folder, body):
        (folder / "belonging").mkdir(parents=True)
        (folder / "belonging/__init__.py").write_text("")
        (folder / "belonging/method.py").write_text("from replan.policies import flow\nfrom . import helper\n")
        (folder / "belonging/helper.py").write_text(body)
        monkeypatch.syspath_prepend(str(folder))
        return source.digest(source.imported("belonging.method"))

    first = write(tmp_path / "a", "VALUE = 1\n")
    assert write(tmp_path / "b", "VALUE = 1\n") == first
    assert write(tmp_path / "c", "VALUE = 2\n") != first
    names = {name for name, _ in source.imported("belonging.method")}
    assert names >= {"belonging/helper.py", "replan/policies/flow.py"}


def installed(site, record, **parts):
    """Writes a distribution with a helper of another top-level name, without installing it."""
    (site / "warping").mkdir(parents=True)
    for name, text in {"warping/__init__.py": "", "warp_helper.py": "POWER = 2\n", "bystander.py": ""}.items():
        (site / name).write_text(text)
    (site / "warping-1.0.dist-info").mkdir()
    for name, text in {
        "METADATA": "Metadata-Version: 2.1\nName: warping\nVersion: 1.0\n",
        "RECORD": record,
        **parts,
    }.items():
        (site / "warping-1.0.dist-info" / name).write_text(text)


@pytest.mark.parametrize("editable", [False, True])
def test_of_a_distribution_every_module_counts_whatever_its_name(tmp_path, monkeypatch, editable):
    files = ["warping/__init__.py", "warp_helper.py", "warping-1.0.dist-info/METADATA", "../../bin/warp"]
    if editable:
        files = ["__editable___warping_finder.py", "warping-1.0.dist-info/METADATA"]
    parts = {"top_level.txt": "warp_helper\nwarping\n"} if editable else {}
    installed(tmp_path, "".join(f"{name},,\n" for name in files), **parts)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = source.digest(source.imported("warping"))
    assert {name for name, _ in source.imported("warping")} == {"warping/__init__.py", "warp_helper.py"}
    (tmp_path / "bystander.py").write_text("EDITED = True\n")
    assert source.digest(source.imported("warping")) == before
    (tmp_path / "warp_helper.py").write_text("POWER = 3\n")
    assert source.digest(source.imported("warping")) != before


def test_a_namespace_and_a_folder_behind_a_link_count_as_any_other(tmp_path, monkeypatch):
    (tmp_path / "site/spacious/fast").mkdir(parents=True)
    (tmp_path / "site/spacious/fast/__init__.py").write_text("STEPS = 2\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/core.py").write_text("STEPS = 2\n")
    (tmp_path / "site/spacious/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "site/spacious")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    digests = [source.digest(source.imported("spacious.fast"))]
    for file in ("site/spacious/fast/__init__.py", "elsewhere/core.py"):
        (tmp_path / file).write_text("STEPS = 9\n")
        digests.append(source.digest(source.imported("spacious.fast")))
    assert len(set(digests)) == 3


def test_a_tree_that_cannot_be_parsed_still_has_a_digest(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source.digest(source.imported("odd"))


@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode, ids=lambda mode: mode.name)
def test_what_python_compiled_of_another_source_is_not_run_under_the_digest_of_this_one(tmp_path, monkeypatch, mode):
    """Its time and size are those of the source, or it says that they need no look."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "stale.py"
    kept = importlib.util.cache_from_source(str(path))
    for text in ("STEPS = 9\n", "STEPS = 2\n"):
        if text == "STEPS = 2\n":
            py_compile.compile(str(path), cfile=kept, invalidation_mode=mode)
        path.write_text(text)
        os.utime(path, (1, 1))
    if mode is py_compile.PycInvalidationMode.CHECKED_HASH:  # Python looks at the source's content and compiles it anew
        assert source.digest(source.imported("stale"))
        return
    with pytest.raises(
        BadInput, match=r"^Python would run .*stale\..*\.pyc, which is not .*stale\.py compiled; delete it$"
    ):
        source.digest(source.imported("stale"))
    os.remove(kept)
    os.utime(path, (2, 2))
    assert source.digest(source.imported("stale"))


def test_a_compiled_module_beside_a_file_of_ours_is_refused(tree):
    (tree / "policies/agent.abi3.so").touch()
    with pytest.raises(BadInput, match=r"^Python would run .*agent\.abi3\.so and not .*agent\.py; delete it$"):
        Registry().policy("pi0-tiny")


def test_an_edited_method_is_measured_again_and_everything_else_is_reused(tmp_path, capsys):
    plain = {"suite": "belt", "method": "dense,slow", "episodes": 2, "device": "cpu", "out": str(tmp_path / "run")}
    spec = make_spec(plain, FakeRegistry().suites())
    for version in ("1", "1", "2"):
        evaluate(spec, Edited(version), command="", started="")
    first, again = capsys.readouterr().err.split("measured by the same code", 1)
    assert "4 of 4 episodes are there" in first
    assert "2 of 4 episodes are there" in again
    assert "2 episodes of 'slow' were measured by other code (method changed) and are measured again" in again
    with Store.open(spec.out) as store:
        rows = store.episodes()
    assert sorted((row.method, row.code["method"]) for row in rows) == [
        *[("dense", "")] * 2,
        *[("slow", "1")] * 2,
        *[("slow", "2")] * 2,
    ]


def test_code_that_is_edited_during_a_run_is_not_measured_under_the_old_address(tmp_path):
    plain = {"suite": "belt", "method": "dense,slow", "episodes": 2, "device": "cpu", "out": str(tmp_path / "run")}
    spec = make_spec(plain, FakeRegistry().suites())
    with pytest.raises(BadInput, match="^the code of the method changed during the run; start it again$"):
        evaluate(spec, EditedLater(), command="", started="", progress=False)
    assert not (tmp_path / "run").exists()  # refused while the workers are built


def test_a_file_that_is_replaced_keeps_no_digest_of_before_although_it_brings_its_time_along(tmp_path):
    path = tmp_path / "weights"
    path.write_text("1")
    time, before = path.stat().st_mtime_ns, Files({"weights": path}).sha256
    path.write_text("2")
    os.utime(path, ns=(time, time))
    assert Files({"weights": path}).sha256 != before
