"""What a worker does around an episode, in this process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake import FakeAgent, FakeRegistry
from play import plan
from replan.eval.worker import WARMUP_ACTS, WARMUP_ROUNDS, Host, Worker


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


def test_an_agent_that_never_says_that_it_called_its_policy_is_an_error_and_no_endless_loop():
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
    assert (row.status, len(acts)) == ("error", WARMUP_ACTS)
    assert f"NoRound: the agent made 0 rounds in {WARMUP_ACTS} acts" in row.error


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
    worker.build([jobs[0].cell])
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


def test_a_refused_action_is_a_failure_whatever_the_environment_said_before():
    worker, registry, jobs = worker_of(method="nan")
    worker.build([jobs[0].cell])
    world, ended = registry.env.unwrapped, []
    reset = world.reset
    world.reset = lambda **options: (lambda seen, info: (seen, info | {"success": True}))(*reset(**options))
    registry.acting.end = ended.append
    row = worker.play(jobs[0])
    assert (row.success, row.outcome, ended) == (False, "invalid action", [False])
