"""Policies on servers: the rows are those of the same policy in this process, and what goes wrong is told."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("websockets", reason="pip install 'replan[remote]'")
openpi_client = pytest.importorskip(
    "openpi_client.websocket_client_policy", reason="pip install --no-deps openpi-client"
)
from fake import SUITES  # noqa: E402
from replan.eval import provenance  # noqa: E402
from replan.eval.evaluate import make_plan  # noqa: E402
from replan.eval.registry import MethodInfo, PolicyInfo, Registry, Unreachable  # noqa: E402
from replan.eval.remote import client, wire  # noqa: E402
from replan.eval.remote.convention import named_convention  # noqa: E402
from replan.eval.remote.server import Service  # noqa: E402
from replan.eval.spec import BadInput, make_spec  # noqa: E402
from replan.eval.worker import Worker  # noqa: E402
from replan.policies.planner import PlannerAgent  # noqa: E402
from replan.policies.processing import ObservationError  # noqa: E402
from servers import openpi_style, running  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def machine():
    """What this machine is takes seconds to find out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "hardware", cache(provenance.hardware))
        yield


class Belts(Registry):
    """The fake suites, with policies as users name them."""

    def suites(self):
        return SUITES

    def suite_code(self, suite):
        return "fake"


def follow(observation):
    x, hand = observation["state"]
    grip = 1.0 if abs(x - hand) < 0.003 else -1.0
    return np.array([[np.clip((x - hand) / 0.2 + 0.2, -1, 1), grip]] * 4, np.float32)


class Follow:
    def reset(self, seed):
        pass

    def plan(self, observation):
        return follow(observation)


class Here(Belts):
    """The same policy in this process."""

    def policy(self, name):
        return PolicyInfo()

    def method(self, spec, policy):
        return MethodInfo()

    def agent(self, policy, method, dtype, device):
        return PlannerAgent(Follow())


def worker(registry, policy, suite="belt", **fields):
    plain = {"suite": suite, "episodes": 2, "device": "cpu", "out": "unused", "policy": policy, **fields}
    plan = make_plan(make_spec(plain, registry.suites()), registry, command="test", started="2026-01-01")
    return Worker(registry, plan.spec, plan.host), plan


def rows(registry, policy, **fields):
    player, plan = worker(registry, policy, **fields)
    return [player.play(job) for job in plan.jobs]


def same(row):
    """What of an episode must not depend on where its policy runs."""
    rounds = [(r.route, r.control_step, r.executed, r.window, r.accepted, r.drafted) for r in row.rounds]
    return row.cell, row.method, row.success, row.outcome, row.steps, row.trajectory_hash, row.failure, rounds


# A server as openpi's


def test_an_openpi_server_gives_the_rows_of_the_same_policy_in_this_process():
    def infer(observation):
        return {"actions": follow(observation), "server_timing": {"infer_ms": 0.25}}

    with openpi_style(infer) as url:
        remote = rows(Belts(), url)
    local = rows(Here(), "follow")
    assert [same(row) for row in remote] == [same(row) for row in local]
    assert all(row.success for row in remote)


@pytest.mark.parametrize(
    ("said", "stages"),
    [
        ({"server_timing": {"infer_ms": 0.25}, "policy_timing": {"infer_ms": 0.1}}, {"server", "transport"}),
        ({"policy_timing": {"infer_ms": 0.25}}, {"server", "transport"}),
        ({"server_timing": {"infer_ms": float("nan")}}, {"server and transport"}),
        ({}, {"server and transport"}),
    ],
)
def test_latency_of_a_round_is_divided_where_the_server_says_how_long_it_took(said, stages):
    with openpi_style(lambda observation: {"actions": follow(observation), **said}) as url:
        (row, _) = rows(Belts(), url)
    for each in row.rounds:
        assert each.stages_ns.keys() == stages
        assert sum(each.stages_ns.values()) <= each.host_ns
        assert each.stages_ns.get("server", 250_000) == 250_000


def test_a_server_that_says_nothing_about_itself_is_marked_and_may_not_be_given_a_method():
    with openpi_style(lambda observation: {"actions": follow(observation)}, {"reset_pose": [0.0, 1.0]}) as url:
        _, plan = worker(Belts(), url)
        assert "remote" in {mark.badge for mark in plan.record.suite_marks["belt"]}
        with pytest.raises(BadInput, match="runs 'dense'; write --method dense"):
            worker(Belts(), url, method="few_step")


def test_libero_is_sent_as_openpis_own_client_sends_it():
    sent = []

    def infer(message):
        sent.append(message)
        return {"actions": np.tile(np.arange(10, dtype=np.float64)[:, None], 7)}

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 256, 256, 3), np.uint8)
    state = np.arange(8, dtype=np.float32)
    observation = {"agentview": images[0], "wrist": images[1], "state": state, "instruction": "open the drawer"}
    with openpi_style(infer) as url:
        agent = Registry().agent(f"{url}:convention=libero", "dense", "float32", "cpu")
        agent.reset(3)
        actions = [agent.act(observation) for _ in range(6)]
    assert [float(action[0]) for action in actions] == [0, 1, 2, 3, 4, 0]  # five of each ten are executed
    assert all(action.dtype == np.float32 for action in actions)
    message = sent[0]
    assert set(message) == {"observation/image", "observation/wrist_image", "observation/state", "prompt"}
    assert message["prompt"] == "open the drawer" and np.array_equal(message["observation/state"], state)
    for name, image in zip(("observation/image", "observation/wrist_image"), images, strict=True):
        got = message[name]
        assert (got.dtype, got.shape) == (np.uint8, (224, 224, 3))
        from openpi_client import image_tools

        # As openpi's client: it turns what the benchmark renders, which is our image upside down, by 180 degrees.
        theirs = image_tools.resize_with_pad(np.ascontiguousarray(image[::-1][::-1, ::-1]), 224, 224)
        assert np.abs(got.astype(int) - theirs).max() <= 1  # two implementations of one filter


def test_a_convention_read_backwards_gives_the_observation_again():
    convention = replace(named_convention("libero"), size=0)
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 256, (64, 48, 3), np.uint8) for camera in ("agentview", "wrist")}
    observation = {**images, "state": np.zeros(8, np.float32), "instruction": "go"}
    again = convention.observation(convention.message(observation))
    assert again.keys() == observation.keys()
    assert all(np.array_equal(again[key], observation[key]) for key in observation)


def test_a_suite_without_what_the_convention_sends_is_refused_before_anything_is_measured():
    with openpi_style(lambda observation: {"actions": follow(observation)}) as url:
        player, plan = worker(Belts(), f"{url}:convention=libero")
        with pytest.raises(BadInput, match=r"has no 'agentview'.*Name another --policy"):
            player.build(plan.jobs[:1])


# replan serve


@pytest.fixture(scope="module")
def served(policy_file):
    with running(Service(Registry(), str(policy_file), "few_step:steps=3")) as url:
        yield url


def in_process(policy_file, method="few_step:steps=3"):
    return Registry().agent(str(policy_file), method, "float32", "cpu")


def test_openpis_client_gets_the_chunks_of_the_agent_in_this_process(served, policy_file, observation):
    theirs, agent = openpi_client.WebsocketClientPolicy(served), in_process(policy_file)
    assert theirs.get_server_metadata()["replan"]["method"] == "few_step:steps=3"
    agent.reset(0)  # a connection begins an episode
    for episode in (None, 5, 6):
        if episode is not None:
            assert theirs.infer({"reset": episode}) == {"reset": episode}
            agent.reset(episode)
        for step in range(2):
            seen = {**observation, "state": observation["state"] + step}
            answer = theirs.infer(seen)
            while not agent.needs_observation:
                agent.act({})
            agent.act(seen)
            assert np.array_equal(answer["actions"], agent.round.actions)
            assert answer["server_timing"]["infer_ms"] > 0 and answer["replan"]["route"] == "full"


def test_two_clients_do_not_see_each_other(served, policy_file, observation):
    first, second = (openpi_client.WebsocketClientPolicy(served) for _ in range(2))
    once = first.infer({**observation, "reset": 1})["actions"]
    second.infer({**observation, "reset": 2})
    twice = first.infer(observation)["actions"]
    agent = in_process(policy_file)
    agent.reset(1)
    for expected in (once, twice):
        assert np.array_equal(agent.act(observation), expected[0])
        while not agent.needs_observation:
            agent.act({})


def test_replan_serve_gives_the_rows_of_the_same_policy_and_method_in_this_process(served, policy_file):
    fields = {"suite": "conveyor", "method": "few_step:steps=3", "set": {"speed": 15}, "episodes": 2}
    remote, local = rows(Registry(), served, **fields), rows(Registry(), str(policy_file), **fields)
    assert [same(row) for row in remote] == [same(row) for row in local]
    assert all(row.counters == {"steps_saved": 7.0 * len(row.rounds)} for row in remote)
    assert all(r.stages_ns.keys() == {"server", "transport"} for row in remote for r in row.rounds)


def test_a_client_says_what_the_server_runs_and_is_told_otherwise(served):
    with pytest.raises(BadInput, match="write --method few_step:steps=3"):
        Registry().method("dense", served)
    with pytest.raises(BadInput, match="write --dtype float32"):
        Registry().agent(served, "few_step:steps=3", "bfloat16", "cpu")


def test_what_the_server_runs_is_part_of_the_address_and_where_it_is_is_not(policy_file, tmp_path):
    def digest(method):
        with running(Service(Registry(), str(policy_file), method)) as url:
            return Registry().policy(url).files.digests

    assert digest("dense") == digest("dense") != digest("few_step:steps=3")


BAD = [
    ("text", "binary"),
    (b"\xc1", "not msgpack"),
    (b"\x90", "must be a map"),
    ({"reset": -1}, "reset must be a seed"),
    ({"reset": True}, "reset must be a seed"),
    ({"state": 1}, "array or a text"),
]


def test_bad_messages_are_answered_with_a_sentence_and_the_episode_goes_on(served, policy_file, observation):
    from websockets.sync.client import connect

    with connect(served, compression=None) as link:
        link.recv()
        for message, words in BAD:
            link.send(wire.pack(message) if isinstance(message, dict) else message)
            answer = link.recv(timeout=20)
            assert isinstance(answer, str) and words in answer and "\n" not in answer
        link.send(wire.pack(observation))
        actions = wire.unpack(link.recv(timeout=20))["actions"]
    assert np.array_equal(actions[0], in_process(policy_file).act(observation))


def test_what_the_policy_cannot_read_ends_the_connection_with_a_sentence_and_not_the_server(served, observation):
    theirs = openpi_client.WebsocketClientPolicy(served)
    with pytest.raises(RuntimeError, match="lacks 'wrist'"):
        theirs.infer({name: value for name, value in observation.items() if name != "wrist"})
    assert openpi_client.WebsocketClientPolicy(served).infer(observation)["actions"].shape == (10, 7)


def test_a_message_above_the_limit_is_refused_and_the_client_says_so(policy_file, observation):
    with running(Service(Registry(), str(policy_file)), max_bytes=4096) as url:
        agent = Registry().agent(url, "dense", "float32", "cpu")
        agent.reset(0)
        with pytest.raises(Unreachable, match=r"refuses a message of \d+ bytes as too large"):
            agent.act(observation)


def test_clients_without_the_token_are_refused_and_those_with_it_are_not(policy_file, observation, monkeypatch):
    with running(Service(Registry(), str(policy_file)), token="sesame") as url:
        for wrong in (None, "simsim"):
            if wrong:
                monkeypatch.setenv("REPLAN_TOKEN", wrong)
            with pytest.raises(Unreachable, match="refuses the token; set"):
                Registry().policy(url)
        monkeypatch.setenv("REPLAN_TOKEN", "sesame")
        assert Registry().policy(url).marks
        theirs = openpi_client.WebsocketClientPolicy(url, api_key="sesame")
        assert theirs.infer(observation)["actions"].shape == (10, 7)


def test_a_page_in_a_browser_cannot_use_a_server_of_this_machine(served):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus, match="403"):
        connect(served, origin="https://example.org")


def test_a_server_answers_the_health_check_of_openpis(served):
    assert urllib.request.urlopen(f"http{served[2:]}/healthz", timeout=10).read() == b"OK\n"


def test_a_client_too_many_is_sent_away_and_those_before_it_are_not(served, monkeypatch, policy_file, observation):
    monkeypatch.setattr("replan.eval.remote.server.MOST_CLIENTS", 1)
    with running(Service(Registry(), str(policy_file))) as url:
        first = openpi_client.WebsocketClientPolicy(url)
        with pytest.raises(Unreachable, match="1 clients are connected already"):
            Registry().policy(url)
        assert first.infer(observation)["actions"].shape == (10, 7)


def test_methods_that_learn_from_episodes_are_not_served(policy_file):
    class Learning(Registry):
        def method(self, spec, policy):
            return MethodInfo(ordered=True)

    with pytest.raises(BadInput, match="learns from how episodes end"):
        Service(Learning(), str(policy_file), "few_step")


def test_observations_come_in_under_the_names_of_a_convention(policy_file, observation, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'state = "s"\nprompt = "p"\nmirror = true\nsize = 0\nreplan = 0\n[cameras]\nbase = "third"\nhand = "wrist"\n'
    )
    message = {
        "base": observation["third"][:, ::-1],
        "hand": observation["wrist"][:, ::-1],
        "s": observation["state"],
        "p": observation["instruction"],
    }
    with running(Service(Registry(), str(policy_file), convention=str(file))) as url:
        theirs = openpi_client.WebsocketClientPolicy(url)
        actions = theirs.infer(message)["actions"]
        with pytest.raises(RuntimeError, match="lacks 'base'; it has"):
            theirs.infer(observation)
        agent = Registry().agent(f"{url}:convention={file}", "dense", "float32", "cpu")
        agent.reset(0)
        assert np.array_equal(agent.act(observation), actions[0])
    assert np.array_equal(in_process(policy_file, "dense").act(observation), actions[0])


# What goes wrong on the way


def test_an_address_without_a_server_is_bad_input_that_says_what_to_do():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(BadInput, match=r"no policy server answers at ws://127.*replan serve --policy NAME"):
            worker(Belts(), url)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ws://", "write ws://HOST:PORT"),
        ("ws://host", "write ws://HOST:PORT"),
        ("ws://host:port", "write ws://HOST:PORT"),
        ("ws://host:80:tokenizer=x", "write ws://HOST:PORT"),
        ("ws://host:80/?key=1", "write ws://HOST:PORT"),
        ("ws://me:secret@host:80", "REPLAN_TOKEN"),
        ("ws://host:80:convention=narnia", "unknown convention 'narnia'"),
        ("ws://host:80:convention=none.toml", "cannot read the convention"),
    ],
)
def test_what_is_no_address_or_convention_is_refused(name, words):
    with pytest.raises(BadInput, match=words) as caught:
        Registry().policy(name)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (np.zeros((4, 3)), "action"),
        (np.zeros(2), r"numbers \[n, A\]"),
        (np.zeros((0, 2)), r"numbers \[n, A\]"),
        ("up", r"numbers \[n, A\]"),
        (None, r"numbers \[n, A\]"),
    ],
)
def test_answers_that_are_no_actions_are_the_policys_failure(actions, words):
    with openpi_style(lambda observation: {"actions": actions}) as url:
        player, plan = worker(Belts(), url)
        row = player.play(plan.jobs[0])
    assert (row.status, row.success) == ("done", False)
    assert re.search(words, row.failure)


def failing(infer, **fields):
    """Plays an episode whose server does something else from the fourth answer on, after the warm-up."""
    count = 0

    def counted(observation):
        nonlocal count
        count += 1
        return {"actions": follow(observation)} if count <= 3 else infer(observation)

    with openpi_style(counted) as url:
        player, plan = worker(Belts(), url, **fields)
        return player.play(plan.jobs[0])


def test_an_error_that_the_server_reports_is_the_policys_failure():
    row = failing(lambda _: "Traceback (most recent call last):\n  File x\nValueError: no such robot\n")
    assert (row.status, row.success, row.outcome) == ("done", False, "raised")
    assert row.failure.endswith("reports: ValueError: no such robot")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("full", "replan='full', which is no table"),
        ({"route": 3}, "route=3, which is no text"),
        ({"cpu_ms": "3"}, "cpu_ms='3', which is no number of milliseconds"),
        ({"cpu_ms": float("nan")}, "cpu_ms=nan"),
        ({"cpu_ms": -1.0}, "cpu_ms=-1.0"),
        ({"window": "8"}, "window='8', which is no number of actions"),
        ({"window": -1}, "window=-1"),
        ({"accepted": float("nan"), "drafted": 4}, "accepted=nan, which is no number of actions"),
        ({"accepted": 5, "drafted": 4}, "accepted=5 of drafted=4"),
        ({"accepted": 1}, "accepted=1 of drafted=None"),
        ({"counters": [1]}, r"counters=\[1\], which is no table"),
        ({"counters": {"calls": "many"}}, "counters: 'calls'='many', which is no finite number"),
        ({"extra": {"distance": float("inf")}}, "extra: 'distance'=inf, which is no finite number"),
    ],
)
def test_numbers_of_a_server_that_cannot_be_are_its_failure_and_enter_no_result(said, words):
    row = failing(lambda observation: {"actions": follow(observation), "replan": said})
    assert (row.status, row.success, row.outcome, row.counters) == ("done", False, "raised", {})
    assert re.search(f"the server at ws://.* reports {words}", row.failure)


def test_what_a_server_says_about_its_rounds_is_kept():
    said = {"route": "full", "cpu_ms": 2, "window": 6, "accepted": 1, "drafted": 4, "counters": {"calls": 7}}
    with openpi_style(lambda observation: {"actions": follow(observation), "replan": said}) as url:
        player, plan = worker(Belts(), url)
        row = player.play(plan.jobs[0])
    first = row.rounds[0]
    assert (first.window, first.accepted, first.drafted, row.counters) == (6, 1, 4, {"calls": 7.0})
    assert first.cpu_ns >= 2_000_000


def test_an_episode_whose_server_goes_away_is_not_measured_and_nobodys_failure():
    row = failing(lambda _: None)
    assert (row.status, row.success) == ("error", None)
    assert "closed the connection before it answered" in row.error


def test_an_episode_whose_server_does_not_answer_in_time_is_not_measured(monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    late = threading.Event()
    row = failing(lambda _: late.wait(2) and None)
    late.set()
    assert row.status == "error" and "did not answer within 0.3 s" in row.error


def test_an_answer_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 4096)
    row = failing(lambda _: {"actions": np.zeros((4, 2)), "padding": np.zeros(5000, np.uint8)})
    assert row.status == "error" and "a message of more than 4096 bytes" in row.error


def test_the_next_episode_connects_again_unless_the_server_has_changed():
    asked = []

    def infer(observation):
        asked.append(observation)
        return None if len(asked) in (1, 3) else {"actions": follow(observation)[:1]}

    observation = {"state": np.zeros(2, np.float32)}
    with openpi_style(infer, {"name": "a"}) as url:
        agent = Belts().agent(url, "dense", "float32", "cpu")
        agent.reset(0)
        with pytest.raises(Unreachable):
            agent.act(observation)
        agent.reset(1)
        assert agent.act(observation).shape == (2,)
        with pytest.raises(Unreachable):
            agent.act(observation)
    with openpi_style(infer, {"name": "b"}, port=int(url.rpartition(":")[2])):
        with pytest.raises(Unreachable, match="not the one that the run began with"):
            agent.reset(3)


def test_a_convention_refuses_names_given_twice_and_sizes_out_of_range():
    convention = named_convention("libero")
    for change in ({"prompt": "observation/state"}, {"size": -1}, {"replan": 10**6}):
        with pytest.raises(ValueError):
            replace(convention, **change)
    with pytest.raises(ObservationError, match="lacks 'agentview'"):
        convention.message({"state": np.zeros(8)})
