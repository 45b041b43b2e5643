"""From a scripted expert to a checkpoint, in miniature: what is recorded, what is learned, what a stop costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from replan.accel.flash.draft import draft_path, load_draft
from replan.accel.flash.training import train_draft
from replan.eval.collect import Request, collect
from replan.policies import pi0
from replan.policies.checkpoint import read_header
from replan.policies.families import BUILT_IN, family
from replan.policies.pi0 import Pi0
from replan.policies.policy import load_policy
from replan.policies.training import train as training
from replan.policies.training.dataset import Dataset, Unmeasured, learn_words, shifted
from replan.policies.training.recording import Conventions, Frames
from replan.policies.training.train import Recipe, flow_loss, initialise, train

LAST = ("vlm.3.", "video.blocks.3.")
"""The last layer of a prefix that gives keys and values only: nothing reads the rest of it."""

NEW = Unmeasured(pi0.FAMILY, pi0.TINY)
BELT = Conventions("conveyor", ("third", "wrist"), (6,), relative=False, image_size=64)


def record(out, episodes, task, index):
    env_id, episode = "replan.envs:replan/ConveyorSorting-v0", "replan.envs.conveyor.demonstrations:episode"
    collect(Request(env_id, BELT, episode, task, index, out, episodes, seed=0, horizon=16))
    return out


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recording") / "dog-red", 3, "dog-red", 0)


@pytest.fixture(scope="module")
def trained(recording, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    train([recording], out, Recipe(steps=3, batch=8))
    return out


def test_held_out_frames_come_from_episodes_that_are_not_trained_on(recording):
    train_set = Dataset([recording], NEW, held_out=False)
    check = Dataset([recording], train_set.processor, held_out=True)
    assert len(train_set) + len(check) == len(Frames.load(recording).state)
    assert 0 < len(check) < len(train_set)
    assert set(train_set.processor.words) >= {"<pad>", "put", "the", "bin"}


def test_some_episode_of_every_recording_is_held_out_whichever_was_lost(recording, tmp_path):
    frames = Frames.load(recording)
    frames.episode = np.where(frames.episode == 0, 7, frames.episode)  # as where an expert failed in episode 0
    frames.save(tmp_path / "lost", {})
    check = Dataset([tmp_path / "lost"], NEW, held_out=True)
    assert 0 < len(check) == (frames.episode == 1).sum()


def test_where_evaluations_speak_an_open_language_unknown_words_are_read_as_one(recording, tmp_path):
    frames = Frames.load(recording)
    frames.conventions = replace(BELT, open_language=True)
    frames.save(tmp_path / "open", {})
    processor = Dataset([tmp_path / "open"], NEW, held_out=False).processor
    assert "<unk>" in processor.words
    processor.tokenize("kindly place the purple dog " + "very " * 40 + "far away")
    with pytest.raises(ValueError, match="purple"):
        Dataset([recording], NEW, held_out=False).processor.tokenize("put the purple dog in the red bin")


def test_statistics_standardise_the_training_set(recording):
    data = Dataset([recording], NEW, held_out=False)
    moving = data.actions.flatten(0, 1).std(0) > 0
    torch.testing.assert_close(data.actions.flatten(0, 1).mean(0), torch.zeros(7), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        data.actions.flatten(0, 1).std(0)[moving], torch.ones(int(moving.sum())), atol=1e-3, rtol=0
    )
    assert moving.tolist() == [True, True, True, False, False, True, True]  # the expert never rolls or pitches


def fitted(model, data, steps):
    """Trains new weights on one batch, and returns the loss of every step."""
    initialise(model, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    inputs, actions = data.batch(np.arange(8))
    losses = []
    for _ in range(steps):
        loss = flow_loss(model, inputs, actions, torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_the_loss_falls_when_one_batch_is_seen_again_and_again(recording, policy):
    data = Dataset([recording], NEW, held_out=False)
    model = Pi0(policy.model.config)
    losses = fitted(model, data, 25)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_family_learns_from_the_same_recordings(recording, kind):
    config = family(kind).sizes["tiny"]
    data = Dataset([recording], Unmeasured(family(kind), config), held_out=False)
    data.processor.check(training.fit(config, data.processor))
    model = family(kind).model(training.fit(config, data.processor))
    losses = fitted(model, data, 6)
    assert losses[-1] < 0.9 * losses[0]
    silent = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()}
    assert not {name for name in silent if not name.startswith(LAST)}


def test_training_leaves_a_policy_that_says_what_it_is(trained):
    policy = load_policy(trained / "policy.safetensors")
    assert policy.card == {
        "marks": ["tiny model trained here"],
        "suites": ["conveyor"],
        "steps": 3,
        "samples": 24,
    }
    rows = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 3 and np.isfinite(rows[-1]["held_out"])


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """Trains in this process, two steps at a time between keeps."""
    monkeypatch.setattr(training, "KEEP_EVERY", 2)
    monkeypatch.setattr(training, "spawn", lambda work, args, nprocs: work(0, *args))
    return tmp_path


def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(recording, in_process, monkeypatch):
    recipe = Recipe(steps=5, batch=8, shift=2)
    train([recording], in_process / "whole", recipe, workers=1)
    calls = []

    def dies(*arguments):
        calls.append(1)
        if len(calls) == 4:
            torch.distributed.destroy_process_group()
            raise KeyboardInterrupt
        return flow_loss(*arguments)

    monkeypatch.setattr(training, "flow_loss", dies)
    monkeypatch.setattr(training, "_validate", lambda *arguments: {"held_out": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train([recording], in_process / "cut", recipe, workers=1)
    monkeypatch.setattr(training, "flow_loss", flow_loss)
    train([recording], in_process / "cut", recipe, workers=1)
    whole, cut = (in_process / name / "policy.safetensors" for name in ("whole", "cut"))
    assert cut.read_bytes() == whole.read_bytes()
    steps = [json.loads(line)["step"] for line in (in_process / "cut" / "log.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 5] and (in_process / "cut" / training.STATE).exists()


def test_pictures_are_shifted_one_by_one_and_their_borders_repeated():
    picture = np.arange(64 * 64 * 3, dtype=np.uint32).reshape(64, 64, 3)
    moved = shifted(np.broadcast_to(picture, (40, 2, 64, 64, 3)), 3, np.random.default_rng(0)).reshape(80, 64, 64, 3)
    corners = {(int(one[0, 0, 0]), int(one[-1, -1, 0])) for one in moved}
    assert len(corners) > 30  # of 49 ways
    rows, columns = np.divmod(moved[:, 32, 32, 0] // 3, 64)
    assert {*rows, *columns} == set(range(29, 36))
    for one, row, column in zip(moved, rows, columns, strict=True):
        lines, across = (np.clip(np.arange(64) + place - 32, 0, 63) for place in (row.item(), column.item()))
        assert np.array_equal(one, picture[np.ix_(lines, across)])


def test_a_folder_is_not_continued_with_another_recipe(recording, trained):
    with pytest.raises(ValueError, match="other steps"):
        train([recording], trained, Recipe(steps=4, batch=8))


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"family": "xvla"}, "no family .* 'xvla'; known are .*x_vla"), ({"model": "huge"}, "'huge'"), ({}, "16 pixels")],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(recording, tmp_path, changed, message):
    frames = Frames.load(recording)
    if not changed:
        frames.conventions, frames.images = replace(BELT, image_size=16), frames.images[:, :, :16, :16]
    frames.save(tmp_path / "data", {})
    with pytest.raises(ValueError, match=message):
        train([recording, tmp_path / "data"], tmp_path / "out", Recipe(steps=3, batch=8, **changed))
    assert not (tmp_path / "out").exists()


def test_training_is_repeatable(recording, trained, tmp_path):
    train([recording], tmp_path, Recipe(steps=3, batch=8))
    assert (tmp_path / "policy.safetensors").read_bytes() == (trained / "policy.safetensors").read_bytes()


def test_fine_tuning_starts_from_the_weights_and_keeps_the_statistics(recording, trained, tmp_path):
    start = trained / "policy.safetensors"
    train([recording], tmp_path, Recipe(steps=1, batch=8, rate=1e-9), start=start, workers=1)
    before, after = load_policy(start), load_policy(tmp_path / "policy.safetensors")
    assert before.processor == after.processor
    torch.testing.assert_close(before.model.state_dict(), after.model.state_dict(), atol=1e-3, rtol=0)


def test_going_on_with_another_suite_keeps_weights_and_words_and_measures_anew(recording, trained, tmp_path):
    frames = Frames.load(recording)
    frames.conventions, frames.state = replace(BELT, suite="shelf"), frames.state * 3
    frames.save(tmp_path / "shelf", {})
    start = trained / "policy.safetensors"
    train([tmp_path / "shelf"], tmp_path / "on", Recipe(steps=1, batch=8, rate=1e-9), start=start, workers=1)
    before, after = load_policy(start), load_policy(tmp_path / "on" / "policy.safetensors")
    assert after.card["suites"] == ["shelf"] and after.processor.words == before.processor.words
    np.testing.assert_allclose(after.processor.state_mean, np.multiply(before.processor.state_mean, 3), rtol=1e-4)
    torch.testing.assert_close(before.model.state_dict(), after.model.state_dict(), atol=1e-3, rtol=0)


def test_going_on_with_another_task_adds_its_words_behind_those_that_are_known(recording, trained, tmp_path):
    record(tmp_path / "brush", 2, "brush-blue", 3)
    start = trained / "policy.safetensors"
    train([tmp_path / "brush"], tmp_path / "on", Recipe(steps=1, batch=8), start=start, workers=1)
    before, after = load_policy(start).processor, load_policy(tmp_path / "on" / "policy.safetensors").processor
    assert after.words[: len(before.words)] == before.words
    assert set(after.words) - set(before.words) == {"blue", "hairbrush"}
    assert after.state_mean == before.state_mean


def test_more_words_than_the_embedding_has_rows_are_refused(recording, policy):
    with pytest.raises(ValueError, match="vocabulary has 4 words at most"):
        learn_words(policy.processor, [recording], replace(policy.model.config, vocab=4))


def test_a_draft_is_trained_for_a_policy_and_lies_beside_it(recording, trained):
    path = trained / "policy.safetensors"
    error = train_draft(path, [recording], epochs=2, frames=64, batch=32)
    worse = train_draft(path, [recording], trained / "one.safetensors", epochs=1, frames=64, batch=32, rate=1e-9)
    draft = load_draft(draft_path(path), [path])
    assert error < worse and not draft.training
    assert read_header(draft_path(path)).card["validation_rms"] == error


def without_state(frames):
    frames.state = np.full_like(frames.state, np.nan)


def misaligned(frames):
    frames.state = np.concatenate([frames.state, frames.state])


def of_pixels_that_are_no_bytes(frames):
    frames.images = frames.images.astype(np.float32)


def of_double_precision(frames):
    frames.actions = frames.actions.astype(np.float64)


def empty(frames):
    for name in ("images", "state", "instruction", "actions", "episode"):
        setattr(frames, name, getattr(frames, name)[:0])


def of_another_horizon(frames):
    frames.actions = frames.actions[:, :5]


def of_one_episode(frames):
    frames.episode = np.zeros_like(frames.episode)


REFUSED = {
    without_state: "state has numbers that are not finite",
    misaligned: "state must be float32",
    of_pixels_that_are_no_bytes: "images must be uint8",
    of_double_precision: "actions must be float32",
    empty: "images must be uint8",
    of_another_horizon: "chunks of 5 actions, and the model of 16",
    of_one_episode: "record 2 or more",
}


@pytest.mark.parametrize("way", REFUSED, ids=lambda way: way.__name__)
def test_a_recording_that_nothing_can_be_learned_from_is_refused_before_anything_is_written(way, recording, tmp_path):
    frames = Frames.load(recording)
    way(frames)
    frames.save(tmp_path / "other", {})
    with pytest.raises(ValueError, match=REFUSED[way]):
        train([tmp_path / "other"], tmp_path / "out", Recipe(steps=1, batch=2), workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["state.npy", "conventions.json"])
def test_a_damaged_file_of_a_recording_is_named(name, recording, tmp_path):
    Frames.load(recording).save(tmp_path / "other", {})
    (tmp_path / "other" / name).write_bytes(b"")
    with pytest.raises(ValueError, match=name):
        Frames.load(tmp_path / "other")


def test_a_batch_that_processes_cannot_share_equally_is_refused(recording, tmp_path):
    with pytest.raises(ValueError, match="2 processes cannot share a batch of 1 frames"):
        train([recording], tmp_path / "out", Recipe(steps=1, batch=1), workers=2)


@pytest.mark.parametrize("name", ["recipe.json", "state.safetensors"])
def test_a_damaged_file_of_a_training_is_named(name, recording, tmp_path):
    (tmp_path / name).write_bytes(b"{")
    with pytest.raises(ValueError, match=name):
        train([recording], tmp_path, Recipe(steps=1, batch=2), workers=1)
