from __future__ import annotations

from collections import Counter

import pytest
from fake import SUITES
from replan.eval.cells import Actor, Cell, make_batches, make_cells, make_chains, make_jobs
from replan.eval.spec import BadInput, make_spec
from replan.results.addresses import address


def actors(spec):
    pairs = [(policy, method) for policy in spec.policy.values() for method in spec.method]
    return {pair: Actor("w", ordered=pair[1] == "learn") for pair in pairs}


def cells(**fields):
    return make_cells(make_spec({"suite": "belt", "out": "x", **fields}, SUITES), SUITES)


def test_any_number_of_episodes_is_balanced_over_tasks_and_settings():
    for episodes in range(1, 12):
        balanced = cells(episodes=episodes, set={"speed": "6,10"})
        assert len(balanced) == 2 * episodes
        for stop in range(1, len(balanced) + 1):
            for each in (lambda c: c.settings["speed"], lambda c: c.task):
                counts = Counter(map(each, balanced[:stop]))
                assert max(counts.values()) - min(counts.get(k, 0) for k in map(each, balanced[:6])) <= 2


def test_more_episodes_only_add_cells():
    assert cells(episodes=12)[:5] == cells(episodes=5)


def test_no_cell_comes_twice_and_used_up_initial_states_return_with_another_seed():
    shelf = cells(suite="shelf", task="up", episodes=5, seed=7)
    assert [(cell.init_state, cell.seed) for cell in shelf] == [(0, 7), (1, 7), (0, 8), (1, 8), (0, 9)]
    assert len({cell.key for cell in shelf}) == 5


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


def test_addresses_and_noise_are_the_same_in_every_version():
    """Stored rows are compared by them."""
    cell = Cell("belt", "left", 0, 0, {"speed": 6.0})
    assert cell.key == "e2bd4fbef7beea5365add43f06edb4153fe3b31ab2c4cc6d04878dece1fbaf4e"
    assert cell.noise_seed == 249302714611646
    assert address({"b": "ü", "a": [1.0, None]}).startswith("353a55b135be85a6220910bfb5d903ba")


def test_methods_meet_the_same_cells_side_by_side_and_take_turns_in_going_first():
    spec = make_spec({"suite": "belt", "out": "x", "episodes": 4, "method": "dense,draft"}, SUITES)
    jobs = make_jobs(spec, make_cells(spec, SUITES), actors(spec), None)
    pairs = [jobs[i : i + 2] for i in range(0, 8, 2)]
    assert all(a.cell == b.cell and {a.method, b.method} == {"dense", "draft"} for a, b in pairs)
    assert [a.method for a, _ in pairs] == ["dense", "draft", "dense", "draft"]


def batches_of(**fields):
    spec = make_spec({"out": "x", "method": "dense,draft", **fields}, SUITES)
    jobs = make_jobs(spec, make_cells(spec, SUITES), actors(spec), None)
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
    def key(latency=None, suite_code="s", actor=None, **fields):
        spec = make_spec({"suite": "belt", "out": "x", "episodes": 1, "device": "cpu", **fields}, SUITES)
        given = {"weights": "0", "code": {"policy": "p", "method": "m"}, **(actor or {})}
        actors = {(policy, method): Actor(**given) for policy in spec.policy.values() for method in spec.method}
        return make_jobs(spec, make_cells(spec, SUITES), actors, latency, {"belt": suite_code})[0].key

    different = [
        key(),
        key(actor={"weights": "1"}),
        key(actor={"files": ("2",)}),
        key(actor={"code": {"policy": "q", "method": "m"}}),
        key(actor={"code": {"policy": "p", "method": "n"}}),
        key(suite_code="t"),
        key(latency={"fixed": 1}),
        key(method="draft"),
        key(clock="realtime"),
        key(seed=1),
        key(set={"speed": "6"}),
        key(dtype="bfloat16"),
        key(device="cuda"),
        key(dtype="bfloat16", device="cuda"),
        key(actor={"ordered": True}),
    ]
    assert len(set(different)) == len(different)
    assert key(policy="copy/of/it") == key(workers=2) == key(out="y") == key(timeout=1.0) == key()


def test_measurement_address_covers_the_files_of_its_own_method_alone():
    def keys(draft):
        spec = make_spec({"suite": "belt", "out": "x", "episodes": 1, "method": "dense,draft"}, SUITES)
        both = {("tiny", "dense"): Actor("0"), ("tiny", "draft"): Actor("0", files=(draft,))}
        return [job.key for job in make_jobs(spec, make_cells(spec, SUITES), both, None)]

    (dense, draft), (dense_again, retrained) = keys("1"), keys("2")
    assert dense == dense_again
    assert draft != retrained


def chained(**fields):
    spec = make_spec({"suite": "belt", "out": "x", "method": "dense,learn", "device": "cpu", **fields}, SUITES)
    return make_jobs(spec, make_cells(spec, SUITES), actors(spec), None)


def test_the_address_of_an_ordered_measurement_contains_the_episodes_before_it():
    def keys(**fields):
        return [job.key for job in chained(**fields) if job.method == "learn"]

    assert keys(episodes=5)[:3] == keys(episodes=3)
    other = keys(episodes=3, task="left,middle")
    assert other[0] == keys(episodes=3)[0] and not set(other[1:]) & set(keys(episodes=3))  # "left" comes first in both
    plain = {job.key for job in chained(episodes=5) if job.method == "dense"}
    assert plain <= {job.key for job in chained(episodes=5, method="dense")}  # of the others it does not


def test_each_ordered_method_has_one_chain_per_suite():
    jobs = chained(episodes=3, suite="belt,shelf")
    for given in (jobs, jobs[::-1]):
        chains = make_chains(given)
        assert sorted((chain[0].cell.suite, len(chain)) for chain in chains) == [("belt", 3), ("shelf", 3)]
        assert all([job.place for job in chain] == [0, 1, 2] for chain in chains)
    assert make_chains(job for job in jobs if job.method == "dense") == []


def test_noise_seed_is_the_same_for_every_method_and_another_one_in_every_cell():
    assert len({cell.noise_seed for cell in cells(episodes=50)}) == 50
