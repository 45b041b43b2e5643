"""NIRVANA's steps from a library: what is taken over, and that taking nothing over is exactly dense."""

import shutil

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel import library
from replan.accel.nirvana import noise_of
from replan.accel.rmuscle.recording import RATIOS, Recording
from replan.policies.agent import ChunkAgent
from replan.policies.flow import Schedule
from replan.policies.policy import load_policy
from replan.policies.round import Start
from replan.policies.seams import Method, Seam

INSTRUCTION = "put the hairbrush in the red bin"
ROUNDS = 4


def frames(instruction=INSTRUCTION):
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 128, (64, 64, 3), np.uint8) for camera in ("third", "wrist")}
    for number in range(ROUNDS):
        now = {camera: image.copy() for camera, image in images.items()}
        now["third"][16:32, 8 * number : 8 * number + 16] = 255
        yield {**now, "state": np.full(11, number / 4, np.float32), "instruction": instruction}


def play(policy, spec, observations, idle=10**9):
    agent = ChunkAgent(policy, accel.parse(spec) if isinstance(spec, str) else spec, window=1)
    agent.reset(3)
    rounds = []
    for observation in observations:
        agent.act(observation)
        rounds.append(agent.round)
        agent.idle(idle)
    return torch.cat([each.chunk for each in rounds]), rounds, agent


@pytest.fixture(scope="module")
def remembering(policy, tmp_path_factory):
    """A policy with a library of one execution next to it."""
    path = tmp_path_factory.mktemp("nirvana") / "random.safetensors"
    shutil.copy(policy.path, path)
    policy, recording = load_policy(path), Recording()
    play(policy, [recording], frames())
    episode = library.Episode(INSTRUCTION, "first", recording.entries)
    options = {"ratios": RATIOS, "anchors": recording.anchors, "neurons": recording.neurons}
    library.write(library.library_path(path), [episode], policy.files, **options)
    return policy


def test_the_limit_is_dense_bit_for_bit(remembering):
    dense, _, _ = play(remembering, "dense", frames())
    limit, rounds, agent = play(remembering, "nirvana:given=0", frames())
    assert torch.equal(limit, dense) and agent.counters()["steps_given"] == 0
    assert all(each.extra["similarity"] > 0.999 for each in rounds)


class Reference(Method):
    """What the method takes over, by hand: noise and predictions of the same round of the library."""

    name, claims = "reference", frozenset({Seam.INIT, Seam.SCHEDULE})

    def __init__(self, model, pack, given):
        self.model, self.pack, self.given, self.row = model, pack, given, -1

    def look(self, call):
        self.row += 1
        model, flow = self.model, self.model.flow
        inputs = self.pack.inputs(self.row)
        context = model.condition(model.prefill(model.encode(inputs)), inputs)
        self.noise = noise_of(self.pack, self.row, model.noise_shape)
        x, times, self.predictions = self.noise, flow.schedule().times, {}
        for step in range(self.given):
            self.predictions[step] = model.step(x, times[step], context)
            x = flow.advance(x, self.predictions[step], self.noise, times[step], times[step + 1])

    def init(self, call, flow):
        return Start(self.noise, flow.schedule().times[0])

    def schedule(self, call, flow):
        plain = flow.schedule()
        return Schedule(plain.times, tuple(n not in self.predictions for n in range(flow.steps)), self.predictions)


@pytest.mark.parametrize("given", [1, 5, 9])
def test_the_first_denoising_outputs_are_the_references(remembering, given, monkeypatch):
    pack = library.Library(library.library_path(remembering.path)).pack(INSTRUCTION)
    expected, _, _ = play(remembering, [Reference(remembering.model, pack, given)], frames())
    taken, rounds, agent = play(remembering, f"nirvana:given={given}", frames())
    assert agent.methods.all[0].retrieval.retrieved == dict.fromkeys(range(ROUNDS), 1)
    torch.testing.assert_close(taken, expected, rtol=1e-5, atol=1e-5)
    assert agent.counters()["steps_given"] == ROUNDS * given
    assert {len(each.call.schedule.computed) for each in rounds} == {10 - given}
    noises = [noise_of(pack, row, remembering.model.noise_shape) for row in range(ROUNDS)]
    assert not torch.equal(noises[0], noises[1])


def test_without_a_reference_the_round_is_dense(remembering):
    other = list(frames("put the dog in the red bin"))
    dense, _, _ = play(remembering, "dense", other)
    taken, _, agent = play(remembering, "nirvana", other)
    assert torch.equal(taken, dense)
    assert agent.counters() == {"steps_given": 0, "nirvana_fallback_rounds": ROUNDS}
    _, _, agent = play(remembering, "nirvana", frames(), idle=0)  # only how episodes begin is ready
    assert agent.methods.all[0].retrieval.retrieved == {0: ROUNDS}


def test_it_composes_with_reused_predictions_and_not_with_another_start(remembering):
    _, rounds, agent = play(remembering, "nirvana+dp_cache", frames())
    assert agent.counters()["predictions_reused"] > 0 and agent.counters()["steps_given"] == 5 * ROUNDS
    with pytest.raises(ValueError, match="both replace the 'init' seam"):
        accel.parse("nirvana+warm_start")


def test_as_many_steps_as_the_policy_takes_cannot_be_given(remembering):
    with pytest.raises(ValueError, match="takes 10 steps over, and random has 10: none is left"):
        ChunkAgent(remembering, accel.parse("nirvana:given=10"))
    with pytest.raises(ValueError, match="0 or more steps over, got -1"):
        accel.parse("nirvana:given=-1")
