"""Descriptions of suites: refused when they are made, registered all or none, their fingerprints guarded."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import toys
from replan.envs import SuiteUnavailable
from replan.envs.suite import Catalogue, Install, SuiteError, _add


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "my suite"},
        {"name": "shelf\x1b[31m"},
        {"name": ""},
        {"name": "-shelf"},
        {"name": 5},
        {"env_id": "shelf"},
        {"env_id": "a b/Shelf-v0"},
        {"entry_point": "shelf"},
        {"entry_point": toys.Toy},
        {"tasks": "low"},
        {"tasks": ()},
        {"tasks": ["low"]},
        {"tasks": ("low", "low")},
        {"tasks": ("low\nhigh",)},
        {"tasks": (1,)},
        {"kwargs": [("speed", 1)]},
        {"kwargs": {1: 2}},
        {"init_states": 0},
        {"init_states": True},
        {"init_states": 2.0},
        {"cameras": "eye"},
        {"cameras": ("eye", "eye")},
        {"settings": {"speed": "float"}},
        {"settings": {"speed": np.float32}},
        {"settings": {"belt speed": float}},
        {"settings": ("speed",)},
        {"demonstrations": "shelf:episode"},
        {"marks": "toy: a point"},
        {"marks": ("two\nlines",)},
        {"policy": ""},
        {"policy": 5},
        {"block": 0},
        {"block": True},
        {"block": 1.5},
        {"fingerprint": "1.0"},
        {"instructions": {"no such task": "fly"}},
        {"instructions": ("fly",)},
    ],
    ids=repr,
)
def test_a_description_out_of_range_is_refused_in_one_sentence(changes):
    with pytest.raises(SuiteError, match="must be .*got") as refused:
        toys.suite(toys.Toy, **changes)
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value)
    assert next(iter(changes)) in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [{"name": "a b"}, {"checks": ("import cv2",)}, {"packages": "numpy"}, {"lock": "a.lock"}, {"prepare": None}],
)
def test_what_an_installation_needs_is_checked_too(changes):
    with pytest.raises(SuiteError, match="must be .*got"):
        Install(**{"name": "shelf", **changes})


def test_a_module_is_registered_all_or_none(monkeypatch):
    first, second = (toys.suite(toys.Toy, name=name, env_id=f"toys/Half{name}-v0") for name in "AB")
    register, catalogue = gymnasium.register, Catalogue({}, {}, {})

    def fails_at_the_second(env_id, *arguments, **named):
        if env_id == second.env_id:
            raise gymnasium.error.Error("no room")
        register(env_id, *arguments, **named)

    monkeypatch.setattr(gymnasium, "register", fails_at_the_second)
    module = SimpleNamespace(SUITES=(first, second), INSTALL=Install("half"))
    with pytest.raises(SuiteError, match="toys/HalfB-v0.*no room"):
        _add(catalogue, module)
    assert not catalogue.suites and not catalogue.installs and first.env_id not in gymnasium.registry
    monkeypatch.undo()
    _add(catalogue, module)
    assert list(catalogue.suites) == ["A", "B"]
    for suite in (first, second):
        del gymnasium.registry[suite.env_id]


def raises(error):
    def fingerprint(settings):
        raise error

    return fingerprint


@pytest.mark.parametrize("error", [KeyError("assets"), OSError("no file"), RuntimeError("broken"), ImportError("x")])
def test_whatever_a_fingerprint_raises_names_the_suite_and_the_cause(error):
    suite = toys.suite(toys.Toy, fingerprint=raises(error))
    assert suite.fingerprint is not None
    with pytest.raises(SuiteUnavailable, match=f"suite 'Toy' has no fingerprint .{type(error).__name__}: "):
        suite.fingerprint({})


@pytest.mark.parametrize("parts", [None, {"assets": 5}, {5: "assets"}, "1.0"])
def test_a_fingerprint_that_is_no_text_by_name_is_refused(parts):
    with pytest.raises(SuiteUnavailable, match="suite 'Toy' has a fingerprint that is no text by name"):
        toys.suite(toys.Toy, fingerprint=lambda settings: parts).fingerprint({})


def test_what_a_fingerprint_says_itself_is_left():
    for error in (SuiteUnavailable("run `replan setup toy`"), ValueError("planner must be cpu")):
        with pytest.raises(type(error), match=str(error)):
            toys.suite(toys.Toy, fingerprint=raises(error)).fingerprint({})
    assert toys.suite(toys.Toy, fingerprint=lambda settings: {"assets": "1"}).fingerprint({}) == {"assets": "1"}
