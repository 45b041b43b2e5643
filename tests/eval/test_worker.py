"""What a worker does around an episode, in this process."""

from __future__ import annotations

import numpy as np
from fake import FakeBench
from play import jobs_of
from replan.eval.spec import make_spec
from replan.eval.worker import WARMUP_ACTS, WARMUP_CALLS, Worker


class Watched(FakeBench):
    """Keeps what it builds, and notes for every observation whether it was drawn."""

    def environment(self, suite, settings):
        self.env = super().environment(suite, settings)
        world, observe, self.drawn = self.env.unwrapped, self.env.unwrapped._observe, []
        world._observe = lambda: self.drawn.append(world.cameras_on) or observe()
        return self.env

    def agent(self, policy, method):
        self.acting = super().agent(policy, method)
        call, self.calls = self.acting._call, 0

        def counted(observation):
            self.calls += 1
            return call(observation)

        self.acting._call = counted
        return self.acting


def worker_of(**fields):
    bench = Watched()
    spec = make_spec({"suite": "belt", "episodes": 2, "out": "unused", **fields}, bench.suites())
    return Worker(bench, spec), bench, jobs_of(spec)


def test_images_are_drawn_only_for_observations_that_the_policy_looks_at():
    worker, bench, (job, _) = worker_of()
    row = worker.play(job)
    looks = {call.control_step for call in row.rounds}
    assert row.steps > len(row.rounds)
    assert bench.drawn == [step in looks or (step == row.steps and step % 4 == 0) for step in range(row.steps + 1)]


def test_first_episode_of_an_agent_is_preceded_by_calls_that_are_not_part_of_it():
    worker, bench, (first, second) = worker_of()
    row = worker.play(first)
    assert bench.calls == len(row.rounds) + WARMUP_CALLS
    assert row.counters["calls"] == len(row.rounds)
    again = worker.play(second)
    assert bench.calls == len(row.rounds) + WARMUP_CALLS + len(again.rounds)


def test_an_agent_that_never_says_that_it_called_its_policy_is_an_error_and_no_endless_loop():
    worker, bench, (job, _) = worker_of()
    bench.agent("pi0-tiny", "dense")
    bench.agent = lambda policy, method, silent=bench.acting: silent
    act, acts = bench.acting.act, []

    def silent(observation):
        acts.append(act(observation))
        bench.acting.round = None
        return acts[-1]

    bench.acting.act = silent
    row = worker.play(job)
    assert (row.status, len(acts)) == ("error", WARMUP_ACTS)
    assert f"NoPolicyCall: the agent made 0 policy calls in {WARMUP_ACTS} acts" in row.error


def test_environment_and_agent_are_built_once():
    worker, bench, (first, second) = worker_of()
    worker.play(first)
    built = bench.env, bench.acting
    worker.play(second)
    assert (bench.env, bench.acting) == built


def test_what_the_environment_calls_success_is_the_success():
    worker, _, jobs = worker_of(episodes=12, set={"speed": "0.2,2"})
    rows = [worker.play(job) for job in jobs]
    assert {(row.success, row.outcome == "success") for row in rows} == {(True, True), (False, False)}


def test_success_at_the_end_is_kept_where_the_suite_looks_again():
    worker, bench, (job, other) = worker_of()
    assert worker.play(job).success_at_end is None
    world = bench.env.unwrapped
    step = world.step

    def looking_again(action):
        *seen, terminated, truncated, info = step(action)
        return *seen, terminated, truncated, info | ({"success_at_end": np.False_} if terminated else {})

    world.step = looking_again
    row = worker.play(other)
    assert (row.status, row.success, row.success_at_end) == ("done", True, False)


def test_trajectory_hash_sees_the_world_and_not_only_the_actions():
    worker, bench, (job, _) = worker_of()
    before = worker.play(job)
    assert worker.play(job).trajectory_hash == before.trajectory_hash
    world = bench.env.unwrapped
    state = world.get_state
    world.get_state = lambda: state() + (1e-12 if world.time_ns == before.sim_ns else 0)  # at the last step alone
    after = worker.play(job)
    assert (after.steps, after.success) == (before.steps, before.success)
    assert after.trajectory_hash != before.trajectory_hash
