"""rMuscle's caches inside X-VLA's denoising loop, where visual tokens take part in every step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from replan.accel.rmuscle.action_cache import ActionCache
from replan.accel.rmuscle.loop_cache import LoopCache
from replan.accel.rows import drift
from replan.policies import xvla
from replan.policies.model import Ops
from replan.policies.pi0 import Pi0
from replan.policies.policy import Policy
from rounds import observations, play

LAYERS, STEPS = 3, 10
DENSE_LAYERS = LAYERS - 1  # the last one computes the actions' rows only, and is always dense


@pytest.fixture(scope="module")
def vla(policy, randomised):
    model = randomised(xvla.XVLA(replace(xvla.TINY, depth=LAYERS, width=48, mlp=64)))
    return Policy("vla", Path("vla"), (), model, xvla.XVLAProcessor(**vars(policy.processor)), {})


def test_the_limit_is_dense_bit_for_bit(vla):
    dense, _, _ = play(vla, "dense", observations(3))
    limit, _, agent = play(vla, "loop_cache:tokens=1:neurons=1", observations(3))
    counters = agent.counters()
    assert torch.equal(limit, dense) and counters["ffn_rows_reused"] == counters["neurons_reused"] == 0


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_with_all_tokens_it_is_the_action_cache_bit_for_bit(vla, ratio):
    alone, _, _ = play(vla, f"action_cache:ratio={ratio}:anchors=0/4/7", observations(3))
    both, _, agent = play(vla, f"loop_cache:tokens=1:neurons={ratio}:anchors=0/4/7", observations(3))
    assert torch.equal(both, alone) and agent.counters()["neurons_reused"] > 0


def test_a_scene_that_stands_still_repeats_itself(vla):
    """With the same noise, tokens that are taken over have exactly the output that they would have."""
    frame = next(observations(1))
    dense, _, _ = play(vla, "dense", [frame])

    class Twice(LoopCache):
        """Sees one round as if it were two."""

        def look(self, call):
            super().look(call)
            call.noise = noise

    from replan.policies.agent import ChunkAgent

    agent = ChunkAgent(vla, [Twice(tokens=0, neurons=1)], window=1)
    agent.reset(3)
    noise = agent._noise(0)
    for _ in range(3):
        agent.act(frame)
        torch.testing.assert_close(agent.round.chunk, dense, rtol=1e-4, atol=1e-4)
    assert agent.round.extra["ffn_rows"] == 0


class ByHand(Ops):
    """Equation 2 and 3 in every step, row by row; neurons are all computed."""

    def __init__(self, visual, share, anchors):
        self.visual, self.share, self.anchors, self.states, self.chosen = visual.tolist(), share, anchors, {}, {}

    def at(self, step):
        self.step = step

    def ffn(self, layer, x, ffn, rows):
        dense = ffn(x)
        if rows is not None:
            return dense
        key, new = (self.step, layer), {}
        old = self.states.get(key)
        if old is None:
            keep = set(range(len(self.visual)))
        elif self.step in self.anchors:
            moved = drift(x[0, self.visual], torch.stack([old[n][0] for n in range(len(self.visual))]))
            keep = self.chosen[layer] = set(moved.topk(math.ceil(self.share * len(self.visual))).indices.tolist())
        else:
            keep = self.chosen[layer]
        out = dense.clone()
        for number, row in enumerate(self.visual):
            if number in keep:
                new[number] = x[0, row], dense[0, row]
            else:
                new[number] = old[number]
                out[0, row] = old[number][1]
        self.states[key] = new
        return out


def test_tokens_are_chosen_at_anchors_and_taken_over_from_the_same_step(vla):
    frames = list(observations(4))
    _, rounds, agent = play(vla, "loop_cache:tokens=0.3:neurons=1", frames)
    model, hand = vla.model, None
    for number, each in enumerate(rounds):
        call = each.call
        hand = hand or ByHand(model.visual_in_step(call.inputs), 0.3, (0, 5))
        with torch.inference_mode():
            context, x, times = model.condition(call.context, call.inputs), call.noise, call.schedule.times
            for step in range(STEPS):
                hand.at(step)
                prediction = model.step(x, times[step], context, hand)
                x = model.flow.advance(x, prediction, call.noise, times[step], times[step + 1])
        torch.testing.assert_close(each.chunk, x, rtol=1e-3, atol=1e-4)
        visual = len(hand.visual)
        assert each.extra["ffn_rows"] == pytest.approx(math.ceil(0.3 * visual) / visual if number else 1)
    per_round = STEPS * DENSE_LAYERS * (visual - math.ceil(0.3 * visual))
    assert agent.counters()["ffn_rows_reused"] == 3 * per_round


def test_visual_rows_of_a_step_are_those_of_the_views(vla, observation):
    """What differs between two contexts whose images differ, before any layer, are exactly these rows."""
    model = vla.model
    with torch.inference_mode():
        contexts = []
        for change in (0, 90):
            seen = {**observation, **{name: observation[name] // 2 + change for name in ("third", "wrist")}}
            inputs = vla.processor.inputs(seen)
            prefix = model.encode(inputs)
            contexts.append(model.condition(model.prefill(prefix), inputs).rows)
        text = slice(model.config.tokens_per_view, model.config.tokens_per_view + inputs.tokens.shape[1])
    differs = (contexts[0] != contexts[1]).any(-1)[0]
    differs[text] = False  # it has read the first view
    rows = model.visual_in_step(inputs)
    assert len(rows) == prefix.visual and torch.equal(rows - model.horizon, differs.nonzero()[:, 0])


@pytest.mark.parametrize("other", ["few_step:steps=2", "warm_start", "dp_cache", "probe_flow:least=3", "stale_prefix"])
def test_it_composes_with_methods_that_change_which_steps_there_are(vla, other):
    _, _, agent = play(vla, f"loop_cache+{other}", observations(4))
    assert agent.counters()["ffn_rows_reused"] > 0
    alone, _, _ = play(vla, other, observations(4))
    limit, _, _ = play(vla, f"loop_cache:tokens=1:neurons=1+{other}", observations(4))
    assert torch.equal(limit, alone)


def test_another_instruction_is_dense_again(vla):
    frames = [*observations(2), *observations(1, instruction="put the dog in the red bin")]
    chunks, rounds, _ = play(vla, "loop_cache", frames)
    dense, _, _ = play(vla, "dense", frames)
    assert torch.equal(chunks[[0, 2]], dense[[0, 2]]) and not torch.equal(chunks[1], dense[1])
    assert rounds[1].extra["ffn_rows"] < 0.45 and rounds[1].extra["neurons"] < 0.8


def test_families_whose_steps_compute_no_visual_tokens_are_refused(policy):
    assert "no visual tokens" in (LoopCache.misfit(Pi0) or "") and LoopCache.misfit(xvla.XVLA) is None
    with pytest.raises(ValueError, match="context_cache is for its prefill"):
        play(policy, "loop_cache", observations(1))


def test_options_are_those_of_the_two_caches():
    assert LoopCache().activity_counters == ("ffn_rows_reused", "neurons_reused")
    assert LoopCache(tokens=1).activity_counters == ActionCache.activity_counters
    assert LoopCache(neurons=1).activity_counters == ("ffn_rows_reused",)
    for options in ({"tokens": 1.1}, {"neurons": -0.1}, {"anchors": (1, 2)}):
        with pytest.raises(ValueError):
            LoopCache(**options)
