"""Online admission: what joins a library, what leaves it, and that nothing changes without it."""

from __future__ import annotations

import pytest
import torch
from executions import INSTRUCTION, chunks, frames, play
from replan import accel
from replan.accel.admission import Admission, Admitted
from replan.accel.library import Library, library_path
from replan.policies.agent import ChunkAgent

UNSEEN = "put the toy in the blue bin"


def routes(rounds):
    return [each.route for each in rounds]


def episode(agent, policy, observations, success=True):
    rounds, _ = play(policy, "", observations, agent=agent)
    agent.end(success)
    return rounds


def test_an_unseen_task_goes_from_dense_to_cached(muscular):
    agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=2"), window=1)
    failed = episode(agent, muscular, frames(1, UNSEEN), success=False)
    first = episode(agent, muscular, frames(1, UNSEEN))
    assert set(routes(failed)) == set(routes(first)) == {"fallback"}  # a failure teaches nothing
    assert agent.counters()["admitted"] == 1
    second = episode(agent, muscular, frames(1, UNSEEN))
    assert set(routes(second)) == {"cached"}
    assert all(each.extra["similarity"] > 0.999 and each.extra["ffn_rows"] < 0.41 for each in second)
    dense, _ = play(muscular, "dense", frames(1, UNSEEN))
    assert torch.equal(chunks(first), chunks(dense))


def test_an_admitted_execution_is_kept_as_a_built_library_keeps_it(muscular):
    """The library has the same scene under another instruction."""
    agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=1"), window=1)
    episode(agent, muscular, frames(0, UNSEEN))
    entry = agent.methods.all[0].retrieval.pack(UNSEEN)
    built = Library(library_path(muscular.path)).pack(INSTRUCTION)
    assert entry.episodes == (range(6),) and entry.queries.dtype == built.queries.dtype
    for row in range(6):
        assert torch.equal(entry.inputs(row).images, built.inputs(row).images)
        assert torch.equal(entry.queries[row], built.queries[row])
        assert entry.masks(row, 1, 96).shape == built.masks(row, 1, 96).shape


def test_without_capacity_every_episode_is_the_librarys_bit_for_bit(muscular):
    alone, limit = (ChunkAgent(muscular, accel.parse(each), window=1) for each in ("rmuscle", "rmuscle:admit=0"))
    for number, instruction in ((1, INSTRUCTION), (2, UNSEEN), (2, UNSEEN)):
        one, other = (episode(each, muscular, frames(number, instruction, rounds=3)) for each in (alone, limit))
        assert torch.equal(chunks(one), chunks(other)) and routes(one) == routes(other)
        assert alone.counters() == limit.counters()
    assert not limit.methods.all[0].ordered


def test_noting_what_may_be_admitted_changes_no_arithmetic(muscular):
    plain, _ = play(muscular, "rmuscle", frames(1))
    noting, _ = play(muscular, "rmuscle:admit=3", frames(1))
    assert torch.equal(chunks(plain), chunks(noting)) and set(routes(noting)) == {"cached"}


def test_the_same_order_of_episodes_admits_the_same_and_another_order_may_not(muscular):
    def run(numbers):
        agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=1"), window=1)
        rounds = [chunks(episode(agent, muscular, frames(number, UNSEEN, rounds=2))) for number in numbers]
        return torch.stack(rounds)

    assert torch.equal(run([0, 1, 2]), run([0, 1, 2]))
    assert not torch.equal(run([0, 1, 2])[2], run([1, 0, 2])[2])


def admitted(instruction, *beginning):
    query = torch.tensor([beginning, beginning]).half()[:, None]
    return Admitted(instruction, {"query": query, "state": torch.zeros(2, 1), "images": torch.zeros(2, 1)})


class Nothing:
    """A library without executions."""

    def pack(self, instruction):
        return None


def names(admission):
    return [each.instruction for each in admission.episodes]


def test_what_leaves_is_what_others_cover_and_never_the_only_one_of_its_instruction():
    admission = Admission(Nothing(), 3)
    old, alike, lone = admitted("a", 1.0, 0.0), admitted("a", 1.0, 0.1), admitted("b", 1.0, 0.0)
    assert admission.add(old) == {"a"} and admission.add(lone) == {"b"} and admission.add(alike) == {"a"}
    other = admitted("a", 0.0, 1.0)
    assert admission.add(other) == {"a"} and admission.episodes == [lone, alike, other]
    assert admission.add(admitted("b", 1.0, 0.0)) == {"b"} and names(admission) == ["a", "a", "b"]
    assert admission.pack("b").episodes == (range(2),) and admission.pack("a").episodes == (range(2), range(2, 4))
    assert admission.pack("c") is None


def test_an_episode_that_the_library_covers_leaves_again(muscular):
    agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=1"), window=1)
    episode(agent, muscular, frames(1, UNSEEN))
    episode(agent, muscular, frames(1))
    assert agent.counters()["admitted"] == 0
    assert set(routes(episode(agent, muscular, frames(1, UNSEEN)))) == {"cached"}


def test_an_episode_of_another_shape_stays_out():
    admission = Admission(Nothing(), 3)
    admission.add(admitted("a", 1.0, 0.0))
    assert admission.add(admitted("a", 1.0, 0.0, 0.0)) == set() and len(admission.episodes) == 1


def test_a_bound_on_memory_bounds_what_is_prepared_of_admitted_episodes(muscular):
    agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=3:memory_mb=0"), window=1)
    for _ in range(2):
        rounds = episode(agent, muscular, frames(1, UNSEEN))
    assert set(routes(rounds)) == {"full"} and rounds[-1].extra["cache_mb"] == 0


def test_it_learns_across_episodes_only_where_it_admits():
    assert [accel.parse(spec)[0].ordered for spec in ("rmuscle", "rmuscle:admit=0", "rmuscle:admit=1")] == [0, 0, 1]
    with pytest.raises(ValueError, match="admits 0 or more episodes, got -1"):
        accel.parse("rmuscle:admit=-1")


def test_it_composes_with_fewer_steps(muscular):
    """Groups of which no step is computed have the neurons of one that has some."""
    agent = ChunkAgent(muscular, accel.parse("rmuscle:admit=1+few_step:steps=2"), window=1)
    episode(agent, muscular, frames(1, UNSEEN))
    assert set(routes(episode(agent, muscular, frames(1, UNSEEN)))) == {"cached"}
