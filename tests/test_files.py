"""A file of ours is the old one or the new one, whatever happens in between."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from replan.files import is_wrong_path, write_file

ROOT = Path(__file__).parent.parent


def refuse(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("content", ["ü\n", b"\x00\xff"])
def test_a_file_is_written_with_the_mode_that_the_user_chose(tmp_path, content):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", content)
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file_and_is_called_that(tmp_path, monkeypatch, step):
    page = tmp_path / "page"
    page.write_text("old")
    monkeypatch.setattr(step, refuse)
    with pytest.raises(OSError, match="No space left on device") as error:
        write_file(page, "new")
    assert error.value.filename == str(page) and not is_wrong_path(error.value)
    assert page.read_text() == "old" and os.listdir(tmp_path) == ["page"]


def test_text_that_is_not_unicode_leaves_the_old_file(tmp_path):
    (tmp_path / "page").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_file(tmp_path / "page", "x\udcff")
    assert (tmp_path / "page").read_text() == "old" and os.listdir(tmp_path) == ["page"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize("path", [os.devnull, "folder", "folder/none/file", "n" * 300])
def test_a_path_that_is_no_place_for_a_file_is_told_from_a_disk_that_refuses(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(OSError) as error:
        write_file(path, "x")
    assert is_wrong_path(error.value) and error.value.filename == path
    assert os.listdir(tmp_path) == ["folder"] and not Path(os.devnull).is_file()


def test_nothing_in_the_package_writes_a_file_in_another_way():
    """Except what is renamed as a folder when it is whole, and what is only appended to."""
    allowed = {"recording.py", "train.py", "store.py"}
    writes = re.compile(r"\.write_text\(|\.write_bytes\(|open\([^)]*[\"'][wx]b?[\"']|save_file\(|np\.save")
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("accel", "envs", "eval", "kernels", "policies", "results")
        for path in (ROOT / folder).rglob("*.py")
        if writes.search(path.read_text(encoding="utf-8")) and path.name not in allowed
    }
    # Built in a scratch folder that is moved into place when it is whole.
    assert found == {
        f"envs/robotwin/{name}.py"
        for name in ("standin/build", "standin/embodiment", "standin/objects/articulated", "standin/objects/model")
    } | {"envs/robotwin/vulkan.py"}
