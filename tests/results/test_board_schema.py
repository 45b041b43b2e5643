"""The JSON of a board against its committed schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import replan.results
from replan.eval.cli import main
from replan.results import Mark

SCHEMA = json.loads(Path(replan.results.__file__).with_name("board.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def printed(written, make, capsys):
    """What ``replan board --json`` prints of a run in which much happened."""
    drafts = (make.round(accepted=3, action_error=0.1), make.round(1, accepted=0, action_error=0.2))
    lost = [make.episode("flash", cell, cell > 1, task=f"task-{cell % 2}", rounds=drafts) for cell in range(10)]
    dense = [make.episode("dense", cell, task=f"task-{cell % 2}") for cell in range(11)]
    error = make.error("flash", 10, task="task-0")
    store = written(*dense, *lost, error, run=make.run(marks=(Mark("CPU", "CPU"),)))
    with pytest.raises(SystemExit) as ended:
        main(["board", str(store.path.parent), "--json"])
    assert not ended.value.code
    return json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(["{", ""]))


def test_what_board_prints_is_what_its_schema_says(printed):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(printed, SCHEMA, jsonschema.Draft202012Validator)
    flash = printed["board"][1]
    assert flash["flips"] and flash["paired_worst"] and flash["speed_up"] and flash["acceptance"]["drafts"] == 20


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("retention"),
        lambda row: row.update(another=1),
        lambda row: row["success"].update(rate="95 %"),
        lambda row: row["verdict"].update(kind="is fine"),
    ],
)
def test_the_schema_refuses_what_board_does_not_print(printed, change):
    change(printed["board"][1])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(printed, SCHEMA, jsonschema.Draft202012Validator)
