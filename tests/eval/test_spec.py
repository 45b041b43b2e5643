from __future__ import annotations

from dataclasses import replace

import pytest
from fake import SUITES
from replan.eval.spec import BadInput, Spec, make_spec, read_toml


def test_flags_and_toml_mean_the_same(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'suite = ["belt"]\nmethod = ["dense", "draft"]\nepisodes = 8\nout = "runs/x"\n[set]\nspeed = [6, 10.0]\n'
    )
    flags = {"suite": "belt", "method": "dense, draft", "episodes": 8, "out": "runs/x", "set": {"speed": "6,10"}}
    assert make_spec(read_toml(file), SUITES) == make_spec(flags, SUITES)
    assert make_spec(flags, SUITES).set == {"speed": (6.0, 10.0)}


def test_latency_defaults_to_what_the_clock_can_use():
    assert make_spec({"suite": "belt", "out": "x"}, SUITES).latency == "zero"
    assert make_spec({"suite": "belt", "out": "x", "clock": "realtime"}, SUITES).latency == "measured"


def test_true_and_false_are_read_as_words():
    assert make_spec({"suite": "belt", "out": "x", "set": {"still": "false"}}, SUITES).set == {"still": (False,)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suite": "bellt"}, "unknown suite 'bellt'; did you mean 'belt'"),
        ({"task": "lefft"}, "unknown task 'lefft'; did you mean 'left'"),
        ({"task": "up"}, "unknown task 'up'"),
        ({"clock": "realtme"}, "unknown clock 'realtme'; did you mean 'realtime'"),
        ({"episode": 3}, "unknown field 'episode'; did you mean 'episodes'"),
        ({"set": {"sped": "3"}}, "unknown belt setting 'sped'; did you mean 'speed'"),
        ({"suite": "belt,shelf", "set": {"still": "true"}}, "unknown shelf setting 'still'"),
        ({"set": {"speed": "fast"}}, "speed='fast' is not a finite float"),
        ({"set": {"speed": "nan"}}, "speed='nan' is not a finite float"),
        ({"set": {"speed": "6,inf"}}, "speed='inf' is not a finite float"),
        ({"set": {"speed": True}}, "speed=True is not a finite float"),
        ({"set": {"still": "perhaps"}}, "still='perhaps' is not a finite bool"),
        ({"set": {"speed": [6, 6.0]}}, "setting 'speed' needs values that differ"),
        ({"set": {"speed": []}}, "setting 'speed' needs values that differ"),
        ({"set": ["speed"]}, "set must be a table"),
        ({"episodes": 0}, "episodes must be a whole number from 1 to 200000, not 0"),
        ({"episodes": True}, "episodes must be a whole number"),
        ({"workers": 1.5}, "workers must be a whole number from 1 to 1024, not 1.5"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be a whole number from 0 to 9007199254740992, not -1"),
        ({"compared": -1}, "compared must be a whole number from 0 to 1000, not -1"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0"),
        ({"timeout": 10**400}, "timeout must be a number of seconds above 0"),
        ({"episodes": 10**9}, "episodes must be a whole number from 1 to 200000, not 1000000000"),
        ({"episodes": 10**5, "method": "a,b,c"}, "are 300000, more than the 200000 of one run; give fewer --episodes"),
        ({"episodes": 10**5, "set": {"speed": "1,2,3"}}, "under 3 combinations of settings are 300000"),
        ({"method": "flash:delta=0.1,refresh=4"}, "'refresh=4' is not a method: commas separate methods; an option"),
        ({"method": "dp_cache:keep=0,1"}, "'1' is not a method: commas separate methods"),
        ({"out": "a\0b"}, "out must be text, not 'a\\x00b'"),
        ({"suite": "x" * 5000}, "unknown suite"),
        ({"method": "dense,dense"}, "method 'dense' is given twice"),
        ({"method": 3}, "method must be a name or a list of names, not 3"),
        ({"method": ""}, "at least one suite and one method"),
        ({"policy": ""}, "policy must be text"),
        ({"policy": {"belt": 3}}, "policy must be text, or a table of one text per suite, not 3"),
        ({"policy": {"shelf": "a"}}, "unknown suite in policy 'shelf'"),
        ({"suite": "orphan"}, "suite 'orphan' has no policy of its own; name one with --policy NAME|PATH"),
        ({"out": ""}, "no run directory given"),
        ({"latency": "fixed:58ms"}, "the sync clock has no latency"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; did you mean 'bfloat16' or 'float32'"),
        ({"device": "gpu"}, "unknown device 'gpu'; did you mean 'cpu'"),
        ({"device": 0}, "device must be text, not 0"),
    ],
)
def test_bad_value_is_named(fields, message):
    with pytest.raises(BadInput) as error:
        make_spec({"suite": "belt", "out": "runs/x", **fields}, SUITES)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("given", "policies"),
    [
        ({}, {"belt": "tiny", "shelf": "tiny-shelf"}),
        ({"policy": "big"}, {"belt": "big", "shelf": "big"}),
        ({"policy": {"belt": "big"}}, {"belt": "big", "shelf": "tiny-shelf"}),
    ],
)
def test_suites_bring_their_policies_unless_the_user_names_others(given, policies):
    assert make_spec({"suite": "belt,shelf", "out": "x", **given}, SUITES).policy == policies


def test_one_policy_for_all_is_stored_as_one():
    spec = make_spec({"suite": "belt,shelf", "out": "x", "policy": "big"}, SUITES)
    assert spec.as_plain()["policy"] == "big"  # as runs that know no other form have it, so they can be resumed


def test_setting_of_another_type_in_another_suite_is_refused_in_either_order():
    suites = {**SUITES, "rack": replace(SUITES["shelf"], name="rack", settings={"speed": int})}
    for order in ("belt,rack", "rack,belt"):
        with pytest.raises(BadInput, match="setting 'speed' has several types: .*int in rack.*one by one"):
            make_spec({"suite": order, "out": "x", "set": {"speed": "6.5"}}, suites)
    assert make_spec({"suite": "rack", "out": "x", "set": {"speed": "6"}}, suites).set == {"speed": (6,)}


def test_precision_and_device_have_defaults():
    spec = make_spec({"suite": "belt", "out": "x"}, SUITES)
    assert (spec.dtype, spec.device) == ("float32", "auto")


def test_name_that_resembles_nothing_gets_the_known_ones():
    with pytest.raises(BadInput, match="known: absent, belt, .*crash"):
        make_spec({"suite": "zzz", "out": "x"}, SUITES)


def test_unreadable_specification_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"cannot read .*missing\.toml"):
        read_toml(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("suite = [")
    with pytest.raises(BadInput, match=r"broken\.toml' is not TOML"):
        read_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"suite = " + b"[" * 50_000, "nested too deeply"),
        (b"a" + b".a" * 20_000 + b" = 1", "nested too deeply"),
        (b"episodes = " + b"1" * 10_000, "is not TOML"),
        (b"suite = '\xff'", "is not TOML"),
        (b"#" * (1 << 17), "longer than 65536 bytes"),
    ],
)
def test_specification_that_cannot_be_read_is_one_sentence(tmp_path, content, message):
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(BadInput, match=message) as error:
        read_toml(tmp_path / "run.toml")
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_specification_without_an_end_or_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="longer than"):
        read_toml("/dev/zero")
    with pytest.raises(BadInput, match="Is a directory"):
        read_toml(tmp_path)


def test_deeply_nested_values_are_refused_with_a_short_message():
    value = 1
    for _ in range(100_000):
        value = [value]
    for field in ("set", "episodes", "suite", "out", "policy", "timeout"):
        with pytest.raises(BadInput) as error:
            make_spec({"suite": "belt", "out": "x", field: value}, SUITES)
        assert len(str(error.value)) < 500
    with pytest.raises(BadInput):
        make_spec({"suite": "belt", "out": "x", "set": {"speed": value}}, SUITES)


def test_plain_form_can_be_read_again():
    spec = make_spec({"suite": "belt,shelf", "out": "x", "set": {"speed": "6,10"}, "method": "dense,draft"}, SUITES)
    assert make_spec(spec.as_plain(), SUITES) == spec
    assert isinstance(spec, Spec)
