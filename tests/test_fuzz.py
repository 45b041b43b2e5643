"""A part of `make fuzz`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
fuzz = pytest.importorskip("fuzz")  # tools/ is not part of the package

SEED, COUNT = 0, 40


@pytest.mark.slow
def test_hostile_input_ends_with_a_sentence():
    cases = list(fuzz.run_cases(SEED, range(COUNT), workers=2))
    assert [case for case in cases if case.fault is not None] == []
    assert {case.kind for case in cases} == {kind.__name__ for kind in fuzz.KINDS}
    # Some of each kind get past the form: what is refused for that, or stopped by the disk, proves little.
    codes = {kind: {case.code for case in cases if case.kind == kind} for kind in {case.kind for case in cases}}
    assert all(each & {0, 2} for each in codes.values()) and 0 in set().union(*codes.values()), codes


def test_a_fault_is_seen():
    assert fuzz._fault(1, '{"error": "x"}', "error: x\n") == "exit code 1"
    assert fuzz._fault(2, '{"error": "x"}', "Traceback\n") == "a traceback or an escape sequence"
    assert fuzz._fault(2, '{"error": "x"}', "a\n" * 9) == "9 lines on stderr"
    assert fuzz._fault(2, '{"error": "x"}', "error: x\n") is None
