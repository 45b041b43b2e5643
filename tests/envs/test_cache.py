from __future__ import annotations

from pathlib import Path

from replan.envs.cache import cache_folder


def test_the_cache_is_where_the_user_wants_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    monkeypatch.setenv("REPLAN_CACHE", "~/ours")
    assert cache_folder() == Path("/home/somebody/ours")
    monkeypatch.setenv("REPLAN_CACHE", "")
    assert cache_folder() == Path("/fast/replan")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/replan")
