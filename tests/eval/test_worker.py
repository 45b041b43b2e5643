"""What a worker does around an episode, in this process."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fake import FakeAgent, FakeRegistry
from play import plan
from replan.eval import worker as worker_module
from replan.eval.clock import write_trace
from replan.eval.evaluate import make_plan
from replan.eval.registry import Files, MethodInfo
from replan.eval.rows import Host
from replan.eval.spec import BadInput, make_spec
from replan.eval.worker import WARMUP_ACTS, WARMUP_ROUNDS, WARMUP_SEEDS, Worker
from replan.results.schema import OVER_BUDGET


class Watched(FakeRegistry):
    """Keeps what it builds, and notes for every observation whether it was rendered."""

    def environment(self, suite, settings):
        self.env = super().environment(suite, settings)
        world, observe, self.rendered = self.env.unwrapped, self.env.unwrapped._observe, []
        world._observe = lambda: self.rendered.append(world.cameras_on) or observe()
        return self.env

    def agent(self, policy, method, dtype, device):
        self.acting = super().agent(policy, method, dtype, device)
        call, self.calls = self.acting._call, 0

        def counted(observation):
            self.calls += 1
            return call(observation)

        self.acting._call = counted
        return self.acting


def worker_of(**fields):
    registry, prepared = Watched(), plan(**{"episodes": 2, **fields})
    return Worker(registry, prepared.spec, prepared.host), registry, prepared.jobs


def test_images_are_rendered_only_for_observations_that_the_policy_looks_at():
    worker, registry, (job, _) = worker_of()
    row = worker.play(job)
    looks = {call.control_step for call in row.rounds}
    assert row.steps > len(row.rounds)
    assert registry.rendered == [
        step in looks or (step == row.steps and step % 4 == 0) for step in range(row.steps + 1)
    ]


def test_first_episode_of_an_agent_is_preceded_by_calls_that_are_not_part_of_it():
    worker, registry, (first, second) = worker_of()
    row = worker.play(first)
    assert registry.calls == len(row.rounds) + WARMUP_ROUNDS
    assert row.counters["calls"] == len(row.rounds)
    again = worker.play(second)
    assert registry.calls == len(row.rounds) + WARMUP_ROUNDS + len(again.rounds)


def test_an_agent_that_never_says_that_it_called_its_policy_has_failed_and_makes_no_endless_loop():
    worker, registry, (job, _) = worker_of()
    registry.agent("pi0-tiny", "dense", "float32", "cpu")
    registry.agent = lambda *_, silent=registry.acting: silent
    act, acts = registry.acting.act, []

    def silent(observation):
        acts.append(act(observation))
        registry.acting.round = None
        return acts[-1]

    registry.acting.act = silent
    row = worker.play(job)
    assert (row.status, row.success, row.outcome, len(acts)) == ("done", False, "raised", WARMUP_ACTS)
    assert f"NoRound: the agent made no round in {WARMUP_ACTS} acts" in row.failure


def test_environment_and_agent_are_built_once():
    worker, registry, (first, second) = worker_of()
    worker.play(first)
    built = registry.env, registry.acting
    worker.play(second)
    assert (registry.env, registry.acting) == built


def test_what_the_environment_calls_success_is_the_success():
    worker, _, jobs = worker_of(episodes=12, set={"speed": "0.2,2"})
    rows = [worker.play(job) for job in jobs]
    assert {(row.success, row.outcome == "success") for row in rows} == {(True, True), (False, False)}


def test_success_at_the_end_is_kept_where_the_suite_looks_again():
    worker, registry, (job, other) = worker_of()
    assert worker.play(job).success_at_end is None
    world = registry.env.unwrapped
    step = world.step

    def looking_again(action):
        *seen, terminated, truncated, info = step(action)
        return *seen, terminated, truncated, info | ({"success_at_end": np.False_} if terminated else {})

    world.step = looking_again
    row = worker.play(other)
    assert (row.status, row.success, row.success_at_end) == ("done", True, False)


def test_trajectory_hash_sees_the_world_and_not_only_the_actions():
    worker, registry, (job, _) = worker_of()
    before = worker.play(job)
    assert worker.play(job).trajectory_hash == before.trajectory_hash
    world = registry.env.unwrapped
    state = world.get_state
    world.get_state = lambda: state() + (1e-12 if world.time_ns == before.sim_ns else 0)  # at the last step alone
    after = worker.play(job)
    assert (after.steps, after.success) == (before.steps, before.success)
    assert after.trajectory_hash != before.trajectory_hash


@pytest.mark.parametrize("clock", [{}, {"clock": "realtime", "latency": "fixed:57ms"}])
def test_the_agent_gets_the_time_of_every_step_in_which_the_robot_moves(clock):
    worker, registry, (job, _) = worker_of(suite="jerky", **clock)
    row = worker.play(job)
    budgets = registry.acting.budgets
    assert len(budgets) == row.steps and len(set(budgets)) > 1
    # Not the time that passes while a round is computed: the accelerator is busy then.
    assert sum(budgets) == row.sim_ns - (len(row.rounds) * 58_000_000 if clock else 0)


@pytest.mark.parametrize(("method", "success"), [("dense", True), ("nan", False)])
def test_the_agent_is_told_once_how_its_episode_ended(method, success):
    worker, registry, jobs = worker_of(method=method)
    worker.build(jobs[:1])
    events = []
    registry.acting.idle = lambda budget_ns: events.append("idle")
    registry.acting.end = events.append
    row = worker.play(jobs[0])
    assert row.success is success
    assert events == ["idle"] * row.steps + [success]


def test_a_row_says_where_it_was_measured_and_in_which_precision():
    registry = FakeRegistry()
    prepared = plan(dtype="bfloat16")
    assert prepared.host.machine in prepared.record.machines and prepared.host.device == "cpu"
    built = []
    registry.agent = lambda *arguments: built.append(arguments) or FakeAgent("dense")
    worker = Worker(registry, replace(prepared.spec, device="cuda"), Host("m", "H200"))
    row = worker.play(prepared.jobs[0])
    assert (row.machine, row.device, row.device_kind, row.dtype) == ("m", "H200", "cuda", "bfloat16")
    assert built == [("tiny", "dense", "bfloat16", "cuda")]


def test_drafted_positions_are_recorded_as_the_round_says():
    worker, _, jobs = worker_of(method="draft")
    rounds = worker.play(jobs[0]).rounds
    assert {(each.route, each.accepted, each.drafted) for each in rounds} == {("full", None, None), ("flash", 2, 4)}


def built(**fields):
    """A worker that is ready to play, with its environment and its one agent, which a test may change."""
    worker, registry, jobs = worker_of(**fields)
    worker.build(jobs[:1])
    return worker, registry.env.unwrapped, registry.acting, jobs


def test_a_refused_action_is_a_failure_whatever_the_environment_said_before():
    worker, world, acting, jobs = built(method="dense")
    step, act, ended = world.step, acting.act, []
    world.step = lambda action: (*step(action)[:4], {"success": True})
    acting.act = lambda observation: act(observation) if world.time_ns < 100_000_000 else None
    acting.end = ended.append
    row = worker.play(jobs[0])
    assert (row.success, row.outcome, row.steps, ended) == (False, "invalid action", 2, [False])


class Odd:
    def __array__(self, *_, **__):
        raise KeyError("no array")


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (np.array([0.0, 1e300]), r"must be finite as float32, got \[0\.0, 1e\+300\]"),
        (np.array([0.0, np.nan], np.float32), "must be finite as float32"),
        ([-math.inf, 0.0], "must be finite as float32"),
        ([10**400, 0], "must be real numbers, got an array of type object from a list"),
        ([[0.0], [1.0, 2.0]], "must be an array of shape .* got a list"),
        (np.array([True, False]), "must be real numbers, got an array of type bool from a ndarray"),
        (np.array([1 + 2j, 0]), "must be real numbers, got an array of type complex128"),
        ("up", "must be real numbers, got an array of type <U2 from a str"),
        (["0.1", "0.2"], "must be real numbers, got an array of type <U3 from a list"),
        ({"x": 1}, "must be real numbers, got an array of type object from a dict"),
        (None, "must be real numbers, got an array of type object from a NoneType"),
        (Odd(), "must be an array of shape .* got a Odd \\('no array'\\)"),
        (np.zeros((1, 2), np.float32), r"must have shape \(2,\), got \(1, 2\)"),
        (0.0, r"must have shape \(2,\), got \(\)"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_action_is_a_failure_that_says_what_was_wrong(action, why):
    worker, world, acting, (job, _) = built()
    act = acting.act
    acting.act = lambda observation: action if world.time_ns else act(observation)
    row = worker.play(job)
    assert (row.status, row.success, row.outcome, row.error, row.steps) == ("done", False, "invalid action", None, 1)
    with pytest.raises(AssertionError, match=f"at control step 1, the action {why}"):
        raise AssertionError(row.failure)


@pytest.mark.parametrize("action", [[0, 1], np.array([0, 1], np.uint8), np.array([0, 1], np.float64), (0.0, 1.0)])
def test_real_numbers_of_any_type_are_an_action(action):
    worker, world, acting, (job, _) = built()
    act = acting.act
    acting.act = lambda observation: (act(observation), action)[1]
    row = worker.play(job)
    assert (row.steps, row.outcome, row.failure) == (1, "missed", None)


def raising(error):
    def stumble(*_):
        raise error

    return stumble


@pytest.mark.parametrize("error", [RuntimeError("it tripped"), KeyboardInterrupt("Ctrl"), SystemExit(3), MemoryError()])
@pytest.mark.parametrize("where", ["reset", "act", "idle", "end", "counters", "dense_error"])
def test_what_the_policy_or_method_raises_is_its_failure(where, error):
    worker, _, acting, jobs = built(method="draft", episodes=8)
    setattr(acting, where, raising(error))
    rows = [worker.play(job) for job in jobs]
    failures = [row for row in rows if row.failure]
    assert failures == rows or where == "dense_error" and failures  # which is asked in some rounds only
    for row in failures:
        assert (row.status, row.success, row.outcome, row.error) == ("done", False, "raised", None)
        assert row.failure.startswith(type(error).__name__) and row.manifest and row.observation_hash


def test_the_rounds_before_an_exception_are_kept():
    whole_worker, _, _, (job, _) = built(set={"speed": "0.5"})
    whole = whole_worker.play(job)
    worker, _, acting, (job, _) = built(set={"speed": "0.5"})
    act = acting.act
    acting.act = lambda observation: act(observation) if acting.calls < 2 or acting.queue else raising(OSError("x"))()
    row = worker.play(job)
    assert (row.outcome, row.steps, row.failure) == ("raised", 8, "OSError: x")
    assert [each.executed for each in row.rounds] == [4, 4]
    assert row.sim_ns == 8 * 50_000_000
    assert row.counters == {"calls": 2}
    assert whole.steps > 8 and row.manifest == whole.manifest and row.trajectory_hash != whole.trajectory_hash


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"route": None}, "TypeError: a route or stage is named by a string, got None"),
        ({"host_ns": -1}, "ValueError: host_ns of a round must be 0 or more, and below 2\\^63, got -1"),
        ({"cpu_ns": 2**63}, "ValueError: cpu_ns of a round"),
        ({"window": "4"}, "TypeError"),
        ({"accepted": -2}, "ValueError: accepted of a round"),
        ({"stages_ns": {3: 1}}, "TypeError: a route or stage is named by a string, got 3"),
        ({"stages_ns": {"encode": math.inf}}, "OverflowError"),
        ({"extra": None}, "AttributeError"),
    ],
)
def test_a_round_that_cannot_be_recorded_is_a_failure_of_the_method(wrong, why):
    worker, world, acting, (job, _) = built(clock="realtime", latency="zero")
    call = acting._call
    acting._call = lambda observation: replace(call(observation), **(wrong if world.time_ns else {}))
    row = worker.play(job)
    assert (row.status, row.outcome, len(row.rounds)) == ("done", "raised", 1)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(row.failure)


def test_numbers_of_a_method_that_are_none_or_nameless_are_left_out():
    worker, _, acting, (job, _) = built()
    odd = {"n": np.int64(3), "x": np.float32(0.5), "inf": math.inf, "nan": math.nan, 5: 1.0, ("a",): 1.0, "text": "1"}
    odd |= {"none": None, "many": np.zeros(2), "huge": 10**400}
    acting.counters = lambda: odd
    call = acting._call
    acting._call = lambda observation: replace(call(observation), extra=odd)
    row = worker.play(job)
    assert row.counters == {"n": 3.0, "x": 0.5}
    assert {type(value) for value in row.counters.values()} == {float}
    assert {tuple(each.extra) for each in row.rounds} == {("n", "x")}


@pytest.mark.parametrize("error", [RuntimeError("the simulator broke"), KeyboardInterrupt(), SystemExit(2)])
@pytest.mark.parametrize("where", ["reset", "step", "hold", "get_state"])
def test_what_the_environment_raises_is_an_error_and_no_failure(where, error):
    worker, world, _, (job, _) = built(clock="realtime", latency="fixed:10ms")
    setattr(world, where, lambda *_, **__: raising(error)())
    row = worker.play(job)
    assert (row.status, row.success, row.failure) == ("error", None, None)
    assert row.error.startswith(type(error).__name__)


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"x": math.inf}, "'x' is inf, of type float"),
        ({"deep": [{"y": math.nan}]}, "'y' is nan"),
        ({"z": np.zeros(2)}, "of type ndarray"),
        ({"n": np.int64(1)}, "of type int64"),
        ({("a", "b"): 1}, "a name that is no string: \\('a', 'b'\\)"),
        ({"deep": {1: 2}}, "a name that is no string: 1"),
        (None, "TypeError"),
    ],
)
def test_a_manifest_that_cannot_be_stored_is_an_error_that_says_why(manifest, why):
    worker, world, _, (job, _) = built()
    reset = world.reset
    world.reset = lambda **options: (reset(**options)[0], {"success": False, "manifest": manifest})
    row = worker.play(job)
    assert row.status == "error"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(row.error)


@pytest.mark.parametrize("name", ["manifest", "success"])
def test_an_environment_that_lacks_what_an_episode_needs_is_an_error_with_the_name(name):
    worker, world, _, (job, _) = built()
    method = "reset" if name == "manifest" else "step"
    whole = getattr(world, method)
    setattr(
        world,
        method,
        lambda *a, **k: (*(seen := whole(*a, **k))[:-1], {key: seen[-1][key] for key in seen[-1] if key != name}),
    )
    row = worker.play(job)
    assert row.status == "error" and f"the environment's info has no {name!r}" in row.error


def test_a_cell_that_is_solved_at_the_reset_is_a_success_of_no_steps():
    worker, world, acting, (job, _) = built()
    reset, ended = world.reset, []
    world.reset = lambda **options: (lambda seen, info: (seen, info | {"success": True}))(*reset(**options))
    acting.end = ended.append
    row = worker.play(job)
    assert (row.status, row.success, row.outcome, row.steps, row.rounds) == ("done", True, "success", 0, ())
    assert ended == [True]


def test_an_exception_whose_text_cannot_be_read_or_stored_is_a_failure_like_any_other():
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    worker, _, acting, (job, other) = built()
    acting.act = raising(Silent())
    assert worker.play(job).failure == "Silent, whose text cannot be read"
    acting.act = raising(OSError("\udcff" + "x" * 10_000))
    failure = worker.play(other).failure
    assert failure.startswith("OSError: \\udcffx") and len(failure.encode()) < 3000


def test_a_route_that_the_method_does_not_declare_is_refused_in_the_trial_and_its_failure_later():
    worker, registry, (job, _) = worker_of(method="draft")
    registry.method = lambda spec, policy: MethodInfo(routes=("full",))
    why = "a round took the route 'flash', and method 'draft' declares full only; add it to its `routes`"
    with pytest.raises(BadInput, match=f"cannot act in suite 'belt': UndeclaredRoute: {why}"):
        worker.build([job])
    worker, registry, (job, _) = worker_of(method="late")  # whose other route comes when the robot has moved
    registry.method = lambda spec, policy: MethodInfo(routes=("full",))
    row = worker.play(job)
    assert (row.status, row.success, row.outcome) == ("done", False, "raised")
    assert row.failure == f"UndeclaredRoute: {why.replace('draft', 'late')}"


class Clock:
    """A clock that only an agent's work in idle time moves."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now


@pytest.mark.parametrize(("share", "over"), [(1.0, 0), (1.5, 25_000_000)])
def test_idle_time_is_free_as_long_as_the_robot_moves_and_the_rest_is_the_next_rounds(monkeypatch, share, over):
    worker, registry, jobs = worker_of()
    worker.build(jobs[:1])
    clock = Clock()
    monkeypatch.setattr(worker_module, "time", clock)
    acting = registry.acting
    acting._host_ns = lambda: 1_000_000

    def idle(budget_ns):
        assert budget_ns == 50_000_000
        clock.now += int(share * budget_ns)

    acting.idle = idle
    first, *later = worker.play(jobs[0]).rounds
    assert first.host_ns == 1_000_000 and OVER_BUDGET not in first.stages_ns and later
    previous = first
    for each in later:
        excess = over * previous.executed
        assert each.host_ns == 1_000_000 + excess
        assert each.stages_ns.get(OVER_BUDGET, 0) == excess
        previous = each


def test_a_pause_that_was_not_used_is_there_for_the_next_step_until_the_next_round(monkeypatch):
    worker, registry, jobs = worker_of()
    worker.build(jobs[:1])
    clock, steps = Clock(), []
    monkeypatch.setattr(worker_module, "time", clock)

    def idle(budget_ns):  # nothing in the first step after a round, and what two steps give in the second
        steps.append(budget_ns)
        clock.now += 0 if len(steps) % 4 == 1 else 2 * budget_ns if len(steps) % 4 == 2 else budget_ns

    registry.acting.idle = idle
    rounds = worker.play(jobs[0]).rounds
    assert all(each.executed == 4 for each in rounds[:-1]) and len(rounds) > 1
    assert not any(OVER_BUDGET in each.stages_ns for each in rounds)


class Swapped(FakeRegistry):
    """A policy and a method with a file each."""

    def __init__(self, folder):
        self.folder = folder

    def policy(self, name):
        return replace(super().policy(name), files=Files({"weights": self.folder / "weights"}))

    def method(self, spec, policy):
        return replace(super().method(spec, policy), files=Files({"draft": self.folder / "draft"}))


@pytest.mark.parametrize(
    ("file", "what"),
    [("weights", "weights of the policy"), ("draft", "files of the method"), ("p.toml", "latency source"), (None, "")],
)
def test_files_that_are_replaced_during_a_run_are_not_measured_under_the_old_address(tmp_path, file, what):
    for name in ("weights", "draft"):
        (tmp_path / name).write_text("old")
    (tmp_path / "p.toml").write_text("[p]\nfull = '9ms'\n")
    registry, latency = Swapped(tmp_path), f"profile:{tmp_path / 'p.toml'}#p"
    plain = {"suite": "belt", "episodes": 2, "device": "cpu", "out": "x", "clock": "realtime", "latency": latency}
    prepared = make_plan(make_spec(plain, registry.suites()), registry, command="", started="")
    if file is not None:
        (tmp_path / file).write_text("[p]\nfull = '8ms'\n")
    row = Worker(registry, prepared.spec, prepared.host).play(prepared.jobs[0])
    if file is None:
        assert row.status == "done"
    else:
        assert row.error == f"Changed: the {what} changed during the run; start it again"
        with pytest.raises(BadInput, match=f"^the {what} changed during the run; start it again$"):
            Worker(registry, prepared.spec, prepared.host).build(prepared.jobs[:1])


def test_files_that_are_replaced_while_an_agent_is_made_of_them_are_refused(tmp_path):
    for name in ("weights", "draft"):
        (tmp_path / name).write_text("old")
    registry = Swapped(tmp_path)
    prepared = make_plan(
        make_spec({"suite": "belt", "episodes": 1, "device": "cpu", "out": "x"}, registry.suites()),
        registry,
        command="",
        started="",
    )
    agent = registry.agent

    def slow(*arguments):
        (tmp_path / "weights").write_text("new")
        return agent(*arguments)

    registry.agent = slow
    row = Worker(registry, prepared.spec, prepared.host).play(prepared.jobs[0])
    assert row.error == ("Changed: files of policy 'tiny' or method 'dense' changed while they were read; start again")


def test_the_warm_up_takes_every_route_and_is_made_when_the_worker_is_built():
    worker, registry, (job, _) = worker_of(method="draft")
    worker.build([job])
    assert registry.calls == WARMUP_ROUNDS
    row = worker.play(job)
    assert registry.calls == WARMUP_ROUNDS + len(row.rounds)
    assert {each.route for each in row.rounds} == {"full", "flash"}
    assert not any(each.warmup for each in row.rounds)


def test_the_warm_up_tries_other_noise_for_a_route_that_it_has_not_taken_and_then_gives_up():
    worker, registry, jobs = worker_of(method="late", episodes=4)
    worker.build(jobs[:1])
    assert registry.calls == WARMUP_ROUNDS * WARMUP_SEEDS
    rows = [worker.play(job) for job in jobs]
    warm = [(number, each.route) for number, row in enumerate(rows) for each in row.rounds if each.warmup]
    assert warm == [(0, "flash")]  # no latency is charged under the sync clock, so it stays as it is


def test_a_cold_route_does_not_move_the_world_under_measured_latency():
    worker, registry, (job, _) = worker_of(method="late", clock="realtime", latency="measured")
    worker.build([job])
    calls = registry.calls
    row = worker.play(job)
    assert {each.latency_ns for each in row.rounds} == {20_000_000}
    assert not any(each.warmup for each in row.rounds)
    assert row.sim_ns == row.steps * 50_000_000 + len(row.rounds) * 20_000_000
    assert registry.calls > calls + len(row.rounds)  # it was played twice
    before = registry.calls
    again = worker.play(job)
    assert again.trajectory_hash == row.trajectory_hash and registry.calls == before + len(row.rounds)


def test_an_ordered_method_sees_no_round_of_the_warm_up():
    registry, prepared = FakeRegistry(), plan(method="learn", episodes=2)
    built = []

    def agent(*arguments):
        built.append(FakeAgent("learn"))
        built[-1].resets = []
        reset = built[-1].reset
        built[-1].reset = lambda seed, own=built[-1]: own.resets.append(seed) or reset(seed)
        return built[-1]

    registry.agent = agent
    worker = Worker(registry, prepared.spec, prepared.host)
    worker.build(prepared.jobs[:1])
    row = worker.play(prepared.jobs[0])
    acting, warm = built
    assert acting.resets == [prepared.jobs[0].cell.noise_seed] and warm.resets == [0]
    assert acting.episodes == 1 and [each.warmup for each in row.rounds][0]  # its own parts may be cold


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), SystemExit("no kernel")])
def test_a_method_that_cannot_act_on_a_real_observation_is_bad_input(error):
    worker, registry, (job, _) = worker_of()
    registry.agent("tiny", "dense", "float32", "cpu")
    registry.agent = lambda *_, broken=registry.acting: broken
    registry.acting.act = raising(error)
    why = f"policy 'tiny' with method 'dense' cannot act in suite 'belt': {type(error).__name__}: no kernel"
    with pytest.raises(BadInput, match=why):
        worker.build([job])


def test_noise_is_keyed_by_the_cell_and_by_nothing_else():
    seeds = {}
    for method in ("dense", "draft"):
        worker, _, acting, jobs = built(method=method, episodes=6)
        reset, given = acting.reset, []
        acting.reset = lambda seed, given=given, reset=reset: given.append(seed) or reset(seed)
        for job in jobs:
            worker.play(job)
        seeds[method] = given
        assert given == [job.cell.noise_seed for job in jobs]
    assert seeds["dense"] == seeds["draft"] and len(set(seeds["dense"])) == 6


def test_each_round_is_charged_with_its_own_latency():
    worker, _, acting, (job, _) = built(clock="realtime", latency="measured")
    call, times = acting._call, iter(range(2_000_000, 400_000_000, 2_000_000))
    acting._call = lambda observation: replace(call(observation), host_ns=next(times))
    row = worker.play(job)
    assert [each.latency_ns for each in row.rounds] == [2_000_000 * (n + 1) for n in range(len(row.rounds))]
    assert row.sim_ns == row.steps * 50_000_000 + sum(each.latency_ns for each in row.rounds)


def test_the_action_error_of_a_round_is_asked_while_it_is_the_last_one():
    worker, _, acting, jobs = built(method="draft", episodes=6)
    acting.dense_error = lambda: acting.calls + 0.5  # rounds made since the reset
    compared = [each for job in jobs for each in worker.play(job).rounds if each.action_error is not None]
    assert compared and all(each.action_error == each.index + 1.5 for each in compared)


@pytest.mark.parametrize(("compared", "share"), [(0, 0), (1, 1), (5, 0.2)])
def test_as_many_rounds_are_compared_with_dense_as_was_requested(compared, share):
    worker, _, acting, jobs = built(method="draft", episodes=9, compared=compared)
    asked = []
    acting.dense_error = lambda: asked.append(acting.calls) or 0.25
    rounds = [each for job in jobs for each in worker.play(job).rounds]
    assert len(asked) == sum(each.action_error is not None for each in rounds)
    assert len(asked) / len(rounds) == pytest.approx(share, abs=0.15 if 0 < share < 1 else 0)


def test_rounds_say_what_the_agent_said_of_them():
    worker, _, acting, (job, _) = built()
    call = acting._call
    said = {"window": 7, "accepted": 2, "drafted": 5, "stages_ns": {"verify": 9}, "host_ns": 11, "cpu_ns": 10}
    acting._call = lambda observation: replace(call(observation), **said)
    for each in worker.play(job).rounds:
        assert {name: getattr(each, name) for name in said} == said


def test_a_replay_that_is_over_before_its_recording_is_no_result(tmp_path):
    realtime = {"clock": "realtime", "episodes": 1}
    worker, _, (job,) = worker_of(latency="measured", **realtime)
    row, trace = worker.play(job), tmp_path / "trace"
    results = []
    for more in ((), (row.rounds[-1],)):
        write_trace(trace, [replace(row, rounds=(*row.rounds, *more))])
        worker, _, (job,) = worker_of(latency=f"trace:{trace}", **realtime)
        results.append(worker.play(job))
    same, shorter = results
    assert (same.status, same.trajectory_hash) == ("done", row.trajectory_hash)
    count = len(row.rounds)
    assert shorter.status == "error"
    assert f"trace diverged after round {count - 1}: the episode is over, and {count + 1} are recorded" in shorter.error
