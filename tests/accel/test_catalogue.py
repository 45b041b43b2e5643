"""What ``replan methods`` lists comes from the methods and the models themselves."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
from replan import accel
from replan.accel.catalogue import describe
from replan.eval.cli import main
from replan.policies import families
from replan.policies.families import kinds
from replan.policies.pi0 import FAMILY, Pi0
from replan.policies.seams import Method, Seam

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


@pytest.fixture
def replan(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


def test_every_method_is_listed_with_what_it_is(replan):
    code, out, _ = replan("methods", "--json")
    listed = {each["name"]: each for each in json.loads(out.splitlines()[-1])["methods"]}
    assert code == 0 and list(listed) == list(accel.BUILT_IN)
    for name, each in listed.items():
        assert each["summary"].endswith(".") and each["seams"] == sorted(s.value for s in accel.BUILT_IN[name].claims)
        assert sorted([*each["families"], *each["refused"]]) == sorted(kinds())
        given = [f"{key}={'1' if value is None else value}" for key, value in each["options"].items() if value != ""]
        assert accel.parse(":".join([name, *given]))  # defaults as users write them
        if each["seams"] not in ([], ["backend"]):
            assert each["limit"] and each["counters"]
    assert listed["flash"]["families"] == ["pi0", "pi0.5"] and listed["flash"]["options"]["tau"] == "0.9/0.95"
    assert listed["window"]["options"] == {"execute": None} and listed["wam_cache"]["papers"] == ["2610.11401"]
    assert "its state enters with the prefix" in listed["stale_prefix"]["refused"]["fast_wam"]


def test_methods_that_are_named_say_where_they_do_not_run(replan):
    code, out, _ = replan("methods", "wam_cache")
    assert code == 0 and "  families" in out and out.startswith("wam_cache: Computes a refresh set")
    assert "not x_vla" in out and "'prefill_rows' seam, which x_vla does not offer" in out and "few_step" not in out
    code, _, err = replan("methods", "wam_cash")
    assert code == 2 and "did you mean 'wam_cache'" in err


def test_families_are_asked_and_not_listed(monkeypatch):
    class Rows(Method):
        """Computes some rows. And so on."""

        name = "rows"
        claims = frozenset({Seam.STEP_ROWS})

    class Less(Pi0):
        seams: ClassVar[frozenset[Seam]] = frozenset()

    assert describe(Rows).summary == "Computes some rows." and "pi0" in describe(Rows).families
    monkeypatch.setattr("replan.policies.pi0.FAMILY", families.Family("pi0", FAMILY.config, Less, FAMILY.processor))
    assert "pi0" not in describe(Rows).families and "has none inside" in describe(Rows).refused["pi0"]


@pytest.mark.parametrize("name", accel.BUILT_IN)
def test_every_method_has_a_section_on_the_page(name):
    headings = [line.strip("# ") for line in PAGE.splitlines() if line.startswith("## ")]
    assert name == "dense" or any(name in heading.replace(",", "").split() for heading in headings)
