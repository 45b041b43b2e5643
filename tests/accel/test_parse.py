"""Methods by name: options are typed, mistakes are named, and only disjoint claims compose."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from replan import accel
from replan.accel.catalogue import describe
from replan.policies.agent import ChunkAgent
from replan.policies.seams import Method, Methods, needed_files

if TYPE_CHECKING:
    from collections import OrderedDict


def test_options_reach_the_method_with_their_types():
    flash, few = accel.parse("flash:delta=0.1:gripper=false:tau=0.8/0.9/0.95:refresh=4+few_step:steps=3")
    assert (flash.delta, flash.gripper, flash.tau, flash.refresh) == (0.1, False, (0.8, 0.9, 0.95), 4)
    assert few.steps == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("flsh", "flash"),
        ("flash:dleta=1", "delta=0.15"),
        ("flash:delta=much", "much"),
        ("flash:delta", "delta"),
        ("dense:steps=2", "takes none"),
        ("few_step:steps=2.5", "2.5"),
        ("", "unknown method ''"),
        ("few_step:stesp=2", "did you mean steps="),
        ("flash:tau=0.9:tau=0.95", "given tau twice.*slashes"),
        ("0.95", "tau=0.9/0.95"),
        ("flash:tau=0.9//0.95", "tau must be of type float, got ''"),
        ("flash:gripper=maybe", "gripper must be of type bool, got 'maybe'"),
        ("dense+few_step", "combines with none; write 'few_step'"),
        ("few_step:steps=" + "9" * 5000, r"must be of type int, got '9{40}\.\.\.'$"),
    ],
)
def test_mistakes_name_the_way_out(spec, message):
    with pytest.raises(accel.UnknownMethod, match=message):
        accel.parse(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("few_step:steps=0", "0"),
        ("few_step:steps=100000", "1 to 1000 steps, got 100000"),
        ("flash:blind=nan", "nan"),
        ("flash:verify=never", "'always' or 'unless_switching', got 'never'"),
        ("flash:tau=" + "/".join(["0.9"] * 33), "1 to 32 points"),
        ("dp_cache:keep=1/2", "step 0"),
        ("dp_cache:keep=0/-1", "-1"),
        ("flash:delta=-1", "-1"),
        ("flash:delta=nan", "nan"),
        ("flash:tau=1.0", "1.0"),
        ("flash:refresh=-1", "-1"),
        ("flash:reject=maybe", "maybe"),
        ("few_step+dp_cache", "'few_step' and 'dp_cache' cannot be combined: both replace the 'schedule' seam"),
        ("flash+flash", "'round'"),
    ],
)
def test_values_out_of_range_and_claims_that_clash_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


OUT_OF_RANGE = ("-1", "0", "1000000000", "1e300", "nan", "inf", "-5.5", "", "x", "0/99")


def test_whatever_is_refused_of_an_option_names_the_method():
    """Commas and pluses join many methods: a message that only has the value leaves open which one is meant."""
    refused = {}
    for name, kind in accel.BUILT_IN.items():
        for option, value in product(describe(kind).options, OUT_OF_RANGE):
            try:
                accel.parse(f"{name}:{option}={value}")
            except ValueError as error:
                refused[f"{name}:{option}={value}"] = str(error)
    assert len(refused) > 200 and {"flash:delta=-1", "cudagraph:stages=x"} <= refused.keys()
    assert [spec for spec, message in refused.items() if spec.partition(":")[0] not in message] == []


@pytest.fixture
def other(monkeypatch):
    """Returns a function that makes a method of another package known."""

    def install(kind):
        monkeypatch.setitem(accel.BUILT_IN, kind.name, kind)
        return kind

    return install


class Typed(Method):
    """Options of every kind that a specification can write."""

    name = "typed"

    def __init__(self, count: int, cap: int | None = None, mode="fast", shares: tuple[float, ...] = (), *, plain=3):
        self.got = (count, cap, mode, shares, plain)


def test_options_are_read_as_what_the_constructor_says(other):
    other(Typed)
    (method,) = accel.parse("typed:count=4:cap=7:mode=slow:shares=0.5/1:plain=2")
    assert method.got == (4, 7, "slow", (0.5, 1.0), 2)
    assert accel.parse("typed:count=4:cap=none")[0].got == (4, None, "fast", (), 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("typed", "'typed' needs a value for count: typed:count=VALUE"),
        ("typed:count=x", "count must be of type int, got 'x'"),
        ("typed:count=1:cap=x", "cap must be of type int, got 'x'"),
        ("typed:count=1:plain=x", "plain must be of type int"),
        ("typed:size=1", r"it takes count, cap=None, mode='fast', shares=\(\), (\*, )?plain=3"),
    ],
)
def test_mistakes_in_options_of_others_are_named_too(other, spec, message):
    other(Typed)
    with pytest.raises(accel.UnknownMethod, match=message):
        accel.parse(spec)


def test_annotations_that_exist_for_type_checkers_only_do_not_hide_the_others(other):
    class Checked(Method):
        name = "checked"

        def __init__(self, steps: int = 2, table: OrderedDict[str, int] | None = None, share: float = 1):
            self.got = (steps, share)

    other(Checked)
    assert accel.parse("checked:steps=3:share=0.5")[0].got == (3, 0.5)


class Raising(Method):
    name = "raising"
    error: ClassVar[BaseException] = RuntimeError("boom")

    def __init__(self, at: str = "nowhere"):
        self.at = at
        self.fail("init")

    def fail(self, where):
        if self.at == where:
            raise self.error

    def attach(self, policy):
        self.fail("attach")

    def step_ops(self):
        self.fail("ops")
        return super().step_ops()

    def files(self, policy):
        self.fail("files")
        return []


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), SystemExit("boom"), AssertionError("boom")])
@pytest.mark.parametrize("at", ["init", "attach", "ops", "files"])
def test_whatever_the_code_of_a_method_raises_is_one_sentence(other, policy, monkeypatch, error, at):
    monkeypatch.setattr(other(Raising), "error", error)
    with pytest.raises(ValueError, match=rf"^[^\n]* {type(error).__name__}: '?boom'?$") as refusal:
        methods = accel.parse(f"raising:at={at}")
        needed_files(methods[0], policy.path)
        ChunkAgent(policy, methods)
    assert "raising" in str(refusal.value) or at == "ops"


def test_an_interrupt_from_the_keyboard_passes(other, monkeypatch):
    monkeypatch.setattr(other(Raising), "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        accel.parse("raising:at=init")


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("claims", "round", "set of seams as claims, got 'round'"),
        ("claims", {"round"}, "set of seams as claims"),
        ("claims", None, "set of seams as claims, got None"),
        ("activity_counters", "rounds", "tuple of texts as activity_counters, got 'rounds'"),
        ("routes", ["full", 3], "tuple of texts as routes"),
    ],
)
def test_a_method_that_declares_itself_in_another_type_is_refused(attribute, value, message):
    kind = type("Odd", (Method,), {"name": "odd", attribute: value})
    with pytest.raises(ValueError, match=f"'odd' must have a {message}"):
        Methods([kind()])


@pytest.mark.parametrize("named", [["text.safetensors"], [Path()], [None]])
def test_only_files_can_be_needed(policy, named):
    kind = type("Odd", (Method,), {"name": "odd", "files": lambda self, policy: named})
    with pytest.raises(ValueError, match="'odd' must name files"):
        needed_files(kind(), policy.path)
