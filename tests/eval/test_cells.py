from __future__ import annotations

from collections import Counter
from types import MappingProxyType

import pytest
from fake import SUITES
from replan.eval.cells import Cell, address, make_batches, make_cells, make_jobs
from replan.eval.spec import BadInput, make_spec


def cells(**fields):
    return make_cells(make_spec({"suite": "belt", "out": "x", **fields}, SUITES), SUITES)


def test_any_number_of_episodes_is_balanced_over_tasks_and_settings():
    for episodes in range(1, 12):
        drawn = cells(episodes=episodes, set={"speed": "6,10"})
        assert len(drawn) == 2 * episodes
        for stop in range(1, len(drawn) + 1):
            for each in (lambda c: c.settings["speed"], lambda c: c.task):
                counts = Counter(map(each, drawn[:stop]))
                assert max(counts.values()) - min(counts.get(k, 0) for k in map(each, drawn[:6])) <= 2


def test_more_episodes_only_add_cells():
    assert cells(episodes=12)[:5] == cells(episodes=5)


def test_no_cell_comes_twice_and_used_up_initial_states_return_with_another_seed():
    drawn = cells(suite="shelf", task="up", episodes=5, seed=7)
    assert [(cell.init_state, cell.seed) for cell in drawn] == [(0, 7), (1, 7), (0, 8), (1, 8), (0, 9)]
    assert len({cell.key for cell in drawn}) == 5


def test_task_filter_keeps_the_task_and_has_to_leave_some_in_every_suite():
    assert {cell.task for cell in cells(task="left,right", episodes=4)} == {"left", "right"}
    with pytest.raises(BadInput, match="suite 'shelf' has none of the tasks left"):
        cells(suite="belt,shelf", task="left")


def test_address_depends_on_content_alone():
    assert address({"a": 1, "b": [1.0]}) == address({"b": [1.0], "a": 1})
    assert Cell("belt", "left", 0, 0, {"speed": 6.0}).key == cells(set={"speed": "6"})[0].key
    changed = [
        Cell("shelf", "left", 0, 0, {}),
        Cell("belt", "right", 0, 0, {}),
        Cell("belt", "left", 1, 0, {}),
        Cell("belt", "left", 0, 1, {}),
        Cell("belt", "left", 0, 0, {"speed": 6.0}),
    ]
    assert len({cell.key for cell in [Cell("belt", "left", 0, 0, {}), *changed]}) == 6
    with pytest.raises(ValueError, match="JSON"):
        address(float("nan"))


def test_methods_meet_the_same_cells_side_by_side_and_take_turns_in_going_first():
    spec = make_spec({"suite": "belt", "out": "x", "episodes": 4, "method": "dense,draft"}, SUITES)
    jobs = make_jobs(spec, make_cells(spec, SUITES), {"tiny": {"dense": {}, "draft": {}}}, None)
    pairs = [jobs[i : i + 2] for i in range(0, 8, 2)]
    assert all(a.cell == b.cell and {a.method, b.method} == {"dense", "draft"} for a, b in pairs)
    assert [a.method for a, _ in pairs] == ["dense", "draft", "dense", "draft"]


def batches_of(**fields):
    spec = make_spec({"out": "x", "method": "dense,draft", **fields}, SUITES)
    checkpoints = {policy: {"dense": {}, "draft": {}} for policy in spec.policy.values()}
    jobs = make_jobs(spec, make_cells(spec, SUITES), checkpoints, None)
    batches = make_batches(jobs, SUITES)
    assert sorted(job.key for batch in batches for job in batch) == sorted(job.key for job in jobs)
    return batches


def test_a_batch_is_a_cell_with_all_its_methods():
    for batch in batches_of(suite="belt", episodes=5, set={"speed": "6,10"}):
        assert [job.method for job in batch] in (["dense", "draft"], ["draft", "dense"])
        assert len({job.cell.key for job in batch}) == 1


def test_where_another_task_is_expensive_a_batch_is_a_block_of_one_task():
    batches = batches_of(suite="shelf", episodes=12)  # two tasks, two initial states, blocks of two, seeds 0, 1, 2
    assert [[(job.cell.task, job.cell.init_state, job.cell.seed) for job in batch[::2]] for batch in batches] == [
        [(task, 0, seed), (task, 1, seed)] for seed in range(3) for task in ("up", "down")
    ]


def test_suites_come_one_after_another_each_with_its_own_policy():
    jobs = [job for batch in batches_of(suite="shelf,belt", episodes=3) for job in batch]
    assert [(job.cell.suite, job.policy) for job in jobs] == [("shelf", "tiny-shelf")] * 6 + [("belt", "tiny")] * 6


def test_measurement_address_covers_everything_that_can_change_an_episode():
    def key(checkpoints=MappingProxyType({"a": "0"}), latency=None, **fields):
        spec = make_spec({"suite": "belt", "out": "x", "episodes": 1, **fields}, SUITES)
        return make_jobs(spec, make_cells(spec, SUITES), {"tiny": {spec.method[0]: checkpoints}}, latency)[0].key

    different = [
        key(),
        key(checkpoints={"a": "1"}),
        key(checkpoints={"a": "0", "a.draft": "2"}),
        key(latency={"fixed": 1}),
        key(method="draft"),
        key(clock="realtime"),
        key(seed=1),
        key(set={"speed": "6"}),
    ]
    assert len(set(different)) == len(different)
    assert key(checkpoints={"copy/of/a": "0"}) == key(workers=2) == key(out="y") == key(timeout=1.0) == key()


def test_measurement_address_covers_the_files_of_its_own_method_alone():
    def keys(draft):
        spec = make_spec({"suite": "belt", "out": "x", "episodes": 1, "method": "dense,draft"}, SUITES)
        checkpoints = {"tiny": {"dense": {"a": "0"}, "draft": {"a": "0", "a.draft": draft}}}
        return [job.key for job in make_jobs(spec, make_cells(spec, SUITES), checkpoints, None)]

    (dense, draft), (dense_again, retrained) = keys("1"), keys("2")
    assert dense == dense_again
    assert draft != retrained


def test_noise_seed_is_the_same_for_every_method_and_another_one_in_every_cell():
    assert len({cell.noise_seed for cell in cells(episodes=50)}) == 50
