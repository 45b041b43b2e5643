"""rMuscle with a library: what it retrieves, prepares and refuses, on executions of a scene that a square crosses."""

import shutil

import numpy as np
import pytest
import torch
from executions import EPISODES, INSTRUCTION, REBUILD, ROUNDS, chunks, frames, play, record
from replan import accel
from replan.accel import library
from replan.accel.retrieval import Window
from replan.accel.rmuscle.recording import Recording
from replan.policies.agent import ChunkAgent
from replan.policies.policy import load_policy
from replan.policies.weights import CheckpointError


def test_recording_is_dense_bit_for_bit(policy):
    recording = Recording()
    entries, recorded = record(policy, recording, frames(1))
    agent = ChunkAgent(policy, (), window=1)
    agent.reset(7)
    for number, observation in enumerate(frames(1)):
        agent.act(observation)
        assert torch.equal(agent.round.chunk[0], recorded[number])
    assert len(entries) == ROUNDS and recording.neurons == 96


def test_a_library_gives_back_what_was_recorded(muscular):
    opened = library.Library(library.library_path(muscular.path))
    pack = opened.pack(INSTRUCTION)
    assert [len(rows) for rows in pack.episodes] == [ROUNDS] * EPISODES and pack.tensors["images"].dtype == torch.uint8
    recording = Recording()
    entries, _ = record(muscular, recording, frames(2))
    for row, entry in zip(pack.episodes[2], entries, strict=True):
        given = pack.inputs(row)
        assert torch.equal(given.images, entry.inputs.images) and torch.equal(given.state, entry.inputs.state)
        assert torch.equal(given.tokens, entry.inputs.tokens) and torch.equal(pack.queries[row], entry.query)
        masks = pack.masks(row, 1, opened.neurons)
        assert masks.shape == (2, 3, 48) and (masks.diff() > 0).all()
    for group, mask in enumerate(recording._ops.important(0.5)):  # of the last round
        assert torch.equal(mask.sort().values, masks[group])
    assert opened.first_observations == {*(f"{INSTRUCTION} {n}" for n in range(3)), "put the dog in the red bin 0"}
    assert opened.pack("put it away") is None


def test_the_limit_is_dense_bit_for_bit(muscular):
    dense, _ = play(muscular, "dense", frames(1), idle=0)
    limit, agent = play(muscular, "rmuscle:tokens=1:neurons=1", frames(1))
    assert torch.equal(chunks(limit), chunks(dense)) and {each.route for each in limit} == {"cached"}
    assert agent.counters()["ffn_rows_reused"] == agent.counters()["neurons_reused"] == 0


def test_an_execution_that_is_repeated_finds_itself(muscular):
    dense, _ = play(muscular, "dense", frames(1), idle=0)
    cached, agent = play(muscular, "rmuscle:tokens=0:neurons=1", frames(1))
    assert {each.route for each in cached} == {"cached"}
    assert all(each.extra["similarity"] > 0.9999 and each.extra["ffn_rows"] == 0 for each in cached)
    torch.testing.assert_close(chunks(cached), chunks(dense), rtol=1e-4, atol=1e-4)
    method = agent.methods.all[0]
    assert list(method.retrieval.retrieved) == list(range(ROUNDS, 2 * ROUNDS))  # the rows of its own episode, in order
    assert agent.counters()["cached_rounds"] == ROUNDS and method.activity_counters == ("ffn_rows_reused",)


@pytest.mark.parametrize(("preset", "rows", "neurons"), [("fast", 26, 24), ("default", 52, 48), ("slow", 77, 72)])
def test_presets_compute_the_papers_shares(muscular, preset, rows, neurons):
    rounds, _ = play(muscular, f"rmuscle:preset={preset}", frames(0, rounds=2))
    for each in rounds:
        assert each.extra["ffn_rows"] == pytest.approx(rows / 128)
        assert each.extra["neurons"] == pytest.approx((2 * 96 + 8 * neurons) / 960)


def test_time_bounds_what_is_prepared(muscular):
    """Three starts are ready before the episode; of what the window then wants, one per 25 ms is prepared."""
    agent = ChunkAgent(muscular, accel.parse("rmuscle"), window=1)
    agent.reset(3)
    first, second, *_ = frames(1)
    agent.act(first)
    for _ in range(5):
        agent.idle(REBUILD // 2)
    assert agent.counters()["rebuilt"] == 2
    agent.act(second)  # what was left over does not count for the next round
    agent.idle(REBUILD // 2)
    assert agent.counters()["rebuilt"] == 2
    agent.idle(1000 * REBUILD)
    wanted = set(agent.methods.all[0].retrieval.window.rows)
    assert wanted <= agent.methods.all[0].retrieval.prepared.keys() and len(wanted) <= 15


def test_memory_bounds_what_is_prepared(muscular):
    none, _ = play(muscular, "rmuscle:memory_mb=0", frames(1))
    assert {each.route for each in none} == {"full"} and none[-1].extra["cache_mb"] == 0
    rounds, agent = play(muscular, "rmuscle:memory_mb=1:width=2:ahead=2", frames(1))
    assert 0 < max(each.extra["cache_mb"] for each in rounds) <= 1 and agent.counters()["rebuilt"] > 0


def test_what_leaves_the_window_is_released(muscular):
    _, agent = play(muscular, "rmuscle:width=1:ahead=2", frames(1))
    kept = agent.methods.all[0].retrieval.prepared.keys()
    starts = {0, ROUNDS, 2 * ROUNDS}
    assert kept <= {*starts, 2 * ROUNDS - 1} and starts <= kept


def test_an_episode_unlike_all_others_goes_on_densely_and_the_next_one_tries_again(muscular):
    strange = {**next(frames(1)), "third": np.zeros((64, 64, 3), np.uint8), "wrist": np.zeros((64, 64, 3), np.uint8)}
    spec = "rmuscle:similarity=0.999"
    known = list(frames(1))
    rounds, agent = play(muscular, spec, [known[0], strange, known[1]])
    assert [each.route for each in rounds] == ["cached", "fallback", "fallback"]
    dense, _ = play(muscular, "dense", [known[0], strange, known[1]], idle=0)
    assert torch.equal(chunks(rounds[1:]), chunks(dense[1:]))
    again, _ = play(muscular, spec, known, agent=agent)
    assert {each.route for each in again} == {"cached"}


def test_an_instruction_without_executions_is_dense(muscular):
    other = list(frames(1, instruction="put the toy in the blue bin"))
    rounds, _ = play(muscular, "rmuscle", other)
    dense, _ = play(muscular, "dense", other, idle=0)
    assert {each.route for each in rounds} == {"fallback"} and torch.equal(chunks(rounds), chunks(dense))


def test_a_robot_that_does_not_get_on_is_stalled(muscular):
    still = [next(frames(1))] * (ROUNDS + 1)
    with pytest.raises(RuntimeError, match=f"stalled: one reference was retrieved {ROUNDS + 1} times"):
        play(muscular, "rmuscle", still, idle=0)
    play(muscular, "rmuscle", still[1:], idle=0)


def pack_of(queries, states, episodes):
    tensors = {"images": torch.zeros(len(queries), 1)}
    return library.Pack(episodes, torch.tensor(queries)[:, None].half(), torch.tensor(states), tensors)


def test_of_similar_scenes_the_one_with_the_same_motion_is_retrieved():
    """Two executions see the same; one moves up and one moves down."""
    scene = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]]
    up, down = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [-1.0, 0.0], [-2.0, 0.0]]
    pack = pack_of(scene * 2, up + down, (range(3), range(3, 6)))
    for states, rows in ((up, [1, 2]), (down, [4, 5])):
        window = Window(pack, 4, 2, 0.8, arms=1)
        every = range(6)
        window.match(torch.tensor([scene[0]]), torch.tensor(states[0]), every)
        found = [window.match(torch.tensor([scene[n]]), torch.tensor(states[n]), every).row for n in (1, 2)]
        assert found == rows


def test_the_arm_that_differs_more_decides():
    """The first execution differs in one arm by 3, the second in both by 2: less as a maximum, more as a mean."""
    pack = pack_of([[1.0, 0.0]] * 4, [[0.0] * 4, [3.0, 3.0, 0.0, 0.0], [0.0] * 4, [2.0] * 4], (range(2), range(2, 4)))
    for arms, row in ((2, 3), (1, 3)):
        window = Window(pack, 4, 1, 0.8, arms)
        window.match(torch.tensor([[1.0, 0.0]]), torch.zeros(4), range(4))
        assert window.match(torch.tensor([[1.0, 0.0]]), torch.zeros(4), [1, 3]).row == row
    far = pack_of([[1.0, 0.0]] * 4, [[0.0] * 4, [3.0, 3.0, 0.0, 0.0], [0.0] * 4, [2.5] * 4], (range(2), range(2, 4)))
    for arms, row in ((2, 3), (1, 1)):
        window = Window(far, 4, 1, 0.8, arms)
        window.match(torch.tensor([[1.0, 0.0]]), torch.zeros(4), range(4))
        assert window.match(torch.tensor([[1.0, 0.0]]), torch.zeros(4), [1, 3]).row == row


def test_the_window_keeps_the_episodes_that_begin_most_like_this_one():
    queries = [[1.0, angle] for angle in (0.9, 0.1, 0.5, 0.0)]
    pack = pack_of(
        [each for each in queries for _ in range(3)], [[0.0]] * 12, tuple(range(n, n + 3) for n in (0, 3, 6, 9))
    )
    window = Window(pack, 2, 4, 0.8, arms=1)
    assert window.rows == [0, 3, 6, 9]
    assert window.match(torch.tensor([[1.0, 0.04]]), torch.zeros(1), [0, 3, 6, 9]).row == 9
    assert window.rows == [9, 3, 10, 4, 11, 5]  # what is needed soonest comes first


def test_a_library_serves_the_policy_that_made_it_and_no_other(muscular, policy, tmp_path):
    other = tmp_path / "other.safetensors"
    content = bytearray(policy.path.read_bytes())
    content[-1] ^= 1  # a bit of the last weight
    other.write_bytes(content)
    folder = library.library_path(muscular.path)
    with pytest.raises(CheckpointError, match="was made with other weights"):
        ChunkAgent(load_policy(other), accel.parse(f"rmuscle:library={folder}"))
    with pytest.raises(CheckpointError, match="not a library of executions; replan library build makes one"):
        ChunkAgent(load_policy(other), accel.parse("rmuscle"))


def test_a_library_that_is_damaged_is_refused(muscular, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(library.library_path(muscular.path), folder)
    pack = folder / "pack-001.safetensors"
    pack.write_bytes(pack.read_bytes()[:-1] + b"\1")
    with pytest.raises(CheckpointError, match="not the file that its index describes"):
        ChunkAgent(muscular, accel.parse(f"rmuscle:library={folder}"))
    (folder / library.INDEX).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="is damaged"):
        ChunkAgent(muscular, accel.parse(f"rmuscle:library={folder}"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rmuscle:preset=medium", "preset must be one of fast, default, slow"),
        ("rmuscle:tokens=2", "from 0 to 1, got 2.0"),
        ("rmuscle:similarity=2", "similarity must be from -1 to 1"),
        ("rmuscle:width=0", "width and ahead at least 1"),
        ("rmuscle:memory_mb=-1", "at least 0, got -1"),
        ("rmuscle:rebuild_ms=nan", "at least 0"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


def test_a_share_without_masks_is_refused(muscular):
    with pytest.raises(ValueError, match=r"masks for the shares 0.25, 0.5, 0.75 .* not for 0.3"):
        ChunkAgent(muscular, accel.parse("rmuscle:neurons=0.3"))
