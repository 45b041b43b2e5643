"""Every suite keeps the contract, and ``check_suite`` names the promise that a broken suite breaks."""

from __future__ import annotations

import pytest
import toys
from replan.envs import SUITES, SuiteUnavailable
from replan.envs.check import BrokenContract, check_suite

# One suite per environment class; LIBERO builds simulators and RoboTwin renders in software, which takes long.
CLASSES = {suite.entry_point: name for name, suite in SUITES.items()}
MARKS = {"libero_90": (pytest.mark.slow, pytest.mark.long), "robotwin": (pytest.mark.slow, pytest.mark.long)}
BUILT_IN = [pytest.param(name, marks=MARKS.get(name, ())) for name in CLASSES.values()]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_suite_keeps_the_contract(name):
    settings = {"image_size": 32} if name.startswith("libero") else {}
    try:
        check_suite(SUITES[name], settings=settings)
    except SuiteUnavailable as error:
        pytest.skip(str(error))


def test_a_suite_that_keeps_the_contract_passes():
    check_suite(toys.suite(toys.Toy))
    check_suite(toys.suite(toys.EndsAtOnce))
    check_suite(toys.suite(toys.Toy), task="right", settings={"speed": 2.0})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            toys.RemembersTheLastCell,
            "same after other cells: state, get_state differ|same after other cells: get_state",
        ),
        (toys.DependsOnTheProcess, "same in another process: .* differ at step 0"),
        (toys.IgnoresTheInitialState, "initial states 0 and 1 have the same digest"),
        (toys.ReusesItsImage, "share no memory with later ones: eye of step 0 changed"),
        (toys.ReusesItsState, "share no memory with later ones: get_state of step 0 changed"),
        (toys.StepsWithoutAReset, "before the first reset and after close: step raised nothing"),
        (toys.TakesAnyAction, "bad actions .*: an action of another shape was accepted"),
        (toys.TakesAnyTask, r"bad reset options .*'no such task'\} was accepted"),
        (toys.TakesAnyInitialState, r"bad reset options .*'init_state': 0.5\}"),
        (toys.RendersInTheDark, "images are black .*: eye is not black"),
        (toys.MovesOnlyWhereItIsSeen, "nothing else changes: .*get_state"),
        (toys.HasNoBlackImage, "images are black .*: the observation's eye is not in the observation space"),
        (toys.UsesTheGlobalGenerator, "get_state differ"),
        (toys.SeedsTheGlobalGenerator, "global random generators .*: a global generator was used"),
        (toys.HoldsWithoutTime, "hold advances .*: 7 ticks are 0 ns"),
        (toys.HoldsBackwards, r"hold advances .*: hold\(-1\) was accepted"),
        (toys.HoldsWithoutMoving, "hold advances the world .*: 7 ticks .* leave the state as it was"),
        (
            toys.DiffersLate,
            "same in another process: .*get_state differ at step 2[0-9]",
        ),
        (toys.MovesLateWhereItIsSeen, "nothing else changes: .*get_state"),
        (toys.RemembersInItsSecondTask, "a cell of task 'right' is the same in another process: .*get_state differ"),
        (toys.SaysSuccessAsANumber, "success at step 0 is (np.False_|False), not a bool"),
        (toys.NeverLooksAgain, "step .* has success_at_end or end without the other"),
        (toys.SaysAtEndAsANumber, "success_at_end is 0, not a bool"),
        (toys.HasAnInfiniteManifest, "the manifest .*: it is not JSON"),
        (toys.HasATupleInItsInfo, "the info of step 0 is not the same as JSON"),
        (toys.HasNumbersForNames, "the info of step 0 is not the same as JSON"),
        (toys.HasAnArrayInItsInfo, "the info of step 0 is not JSON"),
        (toys.StepsAfterTheEnd, "step after the end raised nothing"),
        (toys.StepsAfterClose, "step after close raised nothing"),
        (toys.TakesOverflow, "an action beyond its own type was accepted"),
        (toys.TakesAnySeed, "the seed True was accepted"),
        (toys.TakesSmallSeedsOnly, "bad reset options .*: the seed is too large"),
        (toys.HasNoTime, "documented types: time_ns must be a growing int, got 0"),
        (toys.SaysTheOutcomeTooEarly, "on the last step only: step 0 has outcome or end without the other"),
        (toys.SaysNoOutcome, "on the last step only: step .* has outcome or end without the other"),
        (toys.HasAFloat32State, r"documented types: get_state must be float64 \[n\], got float32\[2\]"),
        (toys.HasAnArrayInItsManifest, "the manifest is text or numbers, .*: assets is a ndarray"),
        (toys.LacksASuccessRule, "the manifest .*: it lacks success_rule"),
        (toys.LeavesItsObservationSpace, "documented types: the observation's extra is not in the observation space"),
        (toys.NeverEnds, "no episode ended within 10000 steps"),
        (toys.FallsOver, "documented types: KeyError: 'gripper'"),
        (toys.NeedsAnArgument, "it can be made: TypeError: .*shelf"),
        (toys.SamplesWithoutItsGenerator, "Gymnasium's checker finds no fault"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_suite_is_caught_by_name_and_promise(kind, message):
    with pytest.raises(BrokenContract, match=f"^suite '{kind.__name__}' breaks the promise that .*({message})"):
        check_suite(toys.suite(kind, settings={}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"spede": float}}, "setting 'spede' is no argument of Toy"),
        ({"settings": {"speed": str}}, "setting 'speed' is str, and the argument float"),
        ({"cameras": ("nose",)}, "KeyError: 'nose'"),
        ({"init_states": None}, "init_state must be an index in 0..3, got 1000000"),
        ({"init_states": 5}, "init_state must be an index in 0..3, got 4"),
        ({"init_states": 3}, "'init_state': 3} was accepted"),
        ({"instructions": dict.fromkeys(toys.TASKS, "fly")}, "the suite's description says 'fly'"),
    ],
)
def test_a_description_that_does_not_fit_is_caught(changes, message):
    with pytest.raises(BrokenContract, match=message):
        check_suite(toys.suite(toys.Toy, **changes))
