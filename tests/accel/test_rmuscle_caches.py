"""rMuscle's two caches with the round before as the reference, on every family that offers their seams."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel.flash.draft import Draft, DraftConfig, draft_path, save_draft
from replan.accel.rmuscle.action_cache import SelectedNeurons, contribution, important
from replan.accel.rmuscle.context_cache import SplicedRows, states
from replan.accel.rows import drift
from replan.policies import fast_wam
from replan.policies.agent import ChunkAgent
from replan.policies.model import DENSE
from replan.policies.policy import Policy, load_policy
from replan.policies.seams import Ops

VISUAL, LAYERS = 128, 3
FAMILIES = ["policy", "pi05", "wam"]


@pytest.fixture(scope="module")
def wam(policy, randomised):
    config = replace(fast_wam.TINY, depth=3, width=48, mlp=64, heads=2, action_width=32, action_mlp=48, steps=3)
    return Policy("wam", Path("wam"), (), randomised(fast_wam.FastWAM(config)), policy.processor, {})


@pytest.fixture(scope="module")
def pi05(policy, randomised):
    from replan.policies import pi05

    config = replace(pi05.TINY, vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
    return Policy("pi05", Path("pi05"), (), randomised(pi05.Pi05(config)), policy.processor, {})


@pytest.fixture(scope="module")
def policy_with_draft(policy, tmp_path_factory):
    """Its draft is never accepted with delta=0, so that every round takes the full path."""
    path = tmp_path_factory.mktemp("drafted") / "random.safetensors"
    shutil.copy(policy.path, path)
    save_draft(draft_path(path), Draft(DraftConfig.of(policy.model.config)), {}, [path])
    return load_policy(path)


def observations(count, moving=True, instruction="put the hairbrush in the red bin"):
    """A scene in which a bright square moves over a background that stays."""
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 128, (64, 64, 3), np.uint8) for camera in ("third", "wrist")}
    state = rng.normal(size=11).astype(np.float32)
    for number in range(count):
        now = {camera: image.copy() for camera, image in images.items()}
        if moving:
            now["third"][16:32, 8 * (number % 8) : 8 * (number % 8) + 8] = 255
        yield {**now, "state": state, "instruction": instruction}


def play(policy, methods, frames, seed=3):
    """One round per observation; returns the chunks, the rounds and the agent."""
    agent = ChunkAgent(policy, accel.parse(methods) if isinstance(methods, str) else methods, window=1)
    agent.reset(seed)
    rounds = []
    for observation in frames:
        agent.act(observation)
        rounds.append(agent.round)
    return torch.cat([each.chunk for each in rounds]), rounds, agent


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["context_cache:ratio=1", "action_cache:ratio=1", "context_cache+action_cache"])
def test_the_limit_is_dense_bit_for_bit(request, family, spec):
    policy = request.getfixturevalue(family)
    if "ratio" not in spec:  # the first round of the defaults
        assert torch.equal(play(policy, spec, observations(1))[0], play(policy, "dense", observations(1))[0])
        return
    limit, _, agent = play(policy, spec, observations(3))
    assert torch.equal(limit, play(policy, "dense", observations(3))[0])
    counted = agent.counters()
    assert counted[agent.methods.all[0].activity_counters[0]] == 0 and max(counted.values()) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_changes_while_nothing_changes(request, family):
    policy = request.getfixturevalue(family)
    dense, _, _ = play(policy, "dense", observations(3, moving=False))
    cached, _, agent = play(policy, "context_cache:ratio=0", observations(3, moving=False))
    torch.testing.assert_close(cached, dense, rtol=2e-5, atol=2e-5)
    assert agent.counters()["ffn_rows_computed"] * 2 == agent.counters()["ffn_rows_reused"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["context_cache:ratio={}", "action_cache:ratio={}"])
def test_the_error_falls_as_more_is_computed(request, family, spec):
    policy = request.getfixturevalue(family)
    dense, _, _ = play(policy, "dense", observations(4))
    errors = [float((play(policy, spec.format(r), observations(4))[0] - dense).norm()) for r in (0, 0.5, 1)]
    assert errors[0] > errors[1] > errors[2] == 0


def integrate(model, call, context, ops=DENSE):
    """The plain loop of a full path behind the prefill."""
    x, times = call.noise, model.flow.schedule().times
    context = model.condition(context, call.inputs)
    for step, (time, later) in enumerate(zip(times[:-1], times[1:], strict=True)):
        ops.at(step)
        x = model.flow.advance(x, model.step(x, time, context, ops), call.noise, time, later)
    return x


class ContextByHand(Ops):
    """Equations 2 and 3, a token at a time; ``pairs`` is what it has put together."""

    def __init__(self, visual, share, reference=None):
        self.visual, self.share, self.reference, self.pairs = visual, share, reference, []

    def ffn(self, layer, x, ffn, rows):
        y = ffn(x)
        kept = x[0].clone()
        if self.reference is not None:
            old_x, old_y = self.reference[layer]
            drifts = [
                float(((x[0, p] - old_x[p]) ** 2).mean().sqrt() / max(float((x[0, p] ** 2).mean().sqrt()), 1e-6))
                for p in range(self.visual)
            ]
            chosen = sorted(range(self.visual), key=drifts.__getitem__)[-math.ceil(self.share * self.visual) :]
            for p in set(range(self.visual)) - set(chosen):
                y[0, p], kept[p] = old_y[p], old_x[p]
        self.pairs.append((kept[: self.visual], y[0, : self.visual].clone()))
        return y


@pytest.mark.parametrize("family", FAMILIES)
def test_the_context_cache_computes_what_has_drifted_most_and_takes_over_the_rest(request, family):
    policy = request.getfixturevalue(family)
    _, rounds, agent = play(policy, "context_cache:ratio=0.3", observations(3))
    reference = None
    with torch.inference_mode():
        for each in rounds:
            by_hand = ContextByHand(VISUAL, 0.3, reference)
            expected = integrate(policy.model, each.call, policy.model.prefill(each.call.prefix, by_hand))
            reference = by_hand.pairs
            torch.testing.assert_close(each.chunk, expected, rtol=1e-4, atol=1e-5)
    ffns = len(reference)  # pi0's last layer has none
    assert agent.counters() == {
        "ffn_rows_computed": ffns * (VISUAL + 2 * math.ceil(0.3 * VISUAL)),
        "ffn_rows_reused": ffns * 2 * (VISUAL - math.ceil(0.3 * VISUAL)),
    }
    assert [each.extra["ffn_rows"] for each in rounds] == pytest.approx([1, 39 / 128, 39 / 128])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_states_of_an_observation_are_those_of_a_dense_prefill(request, family):
    policy = request.getfixturevalue(family)
    by_hand = ContextByHand(VISUAL, 1)
    with torch.inference_mode():
        inputs = policy.processor.inputs(next(observations(1)))
        policy.model.prefill(policy.model.encode(inputs), by_hand)
        found = states(policy.model, inputs)
    torch.testing.assert_close(found, by_hand.pairs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("left", "computed"),
    [(None, [0, 3, 4, 6]), ([0, 2, 4, 5, 6], [0, 4, 6]), ([3, 5, 1], [3, 5])],
)
def test_a_row_is_computed_where_it_is_not_visual_or_has_drifted_most_and_nowhere_else(left, computed):
    """Rows 1, 2, 4 and 5 are visual. A quarter of those that are left is computed: the one that has drifted most."""
    prefix = SimpleNamespace(embeddings=torch.zeros(1, 7, 3), visual_rows=lambda: torch.tensor([1, 2, 4, 5]))
    rows = None if left is None else torch.tensor(left)
    kept = list(range(7)) if left is None else left
    spliced = SplicedRows(0.25, keeps=True)
    spliced.walk(prefix)
    x = torch.arange(1.0, 22.0).reshape(1, 7, 3)
    assert torch.equal(spliced.ffn(0, x, lambda x: 10 * x, None), 10 * x)
    spliced.reference = spliced.seen
    spliced.walk(prefix)
    now = x.clone()
    now[0, 4] += 5
    now[0, 5] += 1
    asked = []
    out = spliced.ffn(0, now[:, kept], lambda x: asked.append(x.shape[1]) or 20 * x, rows)
    assert asked == [len(computed)]
    for place, row in enumerate(kept):
        assert torch.equal(out[0, place], 20 * now[0, row] if row in computed else 10 * x[0, row])
    seen_x, seen_y = spliced.seen[0]
    for place, row in enumerate((1, 2, 4, 5)):
        assert torch.equal(seen_x[place], now[0, row] if row in computed else x[0, row])
        assert torch.equal(seen_y[place], 20 * now[0, row] if row in computed else 10 * x[0, row])


class ActionByHand(Ops):
    """Equations 1 and 4 on dense activations; ``scores`` are those of every step and layer."""

    def __init__(self, anchors, share, masks=None):
        self.anchors, self.share, self.masks, self.scores, self.kept = anchors, share, masks, {}, {}

    def at(self, step):
        self.step = step

    def ffn(self, layer, x, ffn, rows):
        h, weight = ffn.hidden(x), ffn.down.weight
        group = max(g for g, anchor in enumerate(self.anchors) if anchor <= self.step)
        if self.masks is not None and self.step not in self.anchors:
            anchor_h, anchor_y = self.kept[layer]
            chosen = torch.zeros(h.shape[-1], dtype=torch.bool)
            chosen[list(self.masks[group, layer])] = True
            h = torch.where(chosen, h, anchor_h)
            y = anchor_y + (h - anchor_h) @ weight.T
        else:
            y = ffn(x)
            self.kept[layer] = h, y
        for n in range(h.shape[-1]):
            self.scores[group, self.step, layer, n] = float(h[0, :, n].abs().sum() * weight[:, n].norm())
        return y

    def important(self):
        masks = {}
        for group, layer in {(g, each) for g, _, each, _ in self.scores}:
            table = {}
            for (g, step, each, n), score in self.scores.items():
                if (g, each) == (group, layer):
                    table.setdefault(step, {})[n] = score
            neurons = len(next(iter(table.values())))
            count = math.ceil(self.share * neurons)
            union = {n for scores in table.values() for n in sorted(scores, key=scores.__getitem__)[-count:]}
            total = {n: sum(scores[n] for scores in table.values()) for n in union}
            masks[group, layer] = sorted(total, key=total.__getitem__)[-count:]
        return masks


@pytest.mark.parametrize("family", FAMILIES)
def test_the_action_cache_updates_its_anchors_by_the_important_neurons_of_the_round_before(request, family):
    policy = request.getfixturevalue(family)
    model, steps = policy.model, policy.model.flow.steps
    anchors = (0, steps // 2)
    _, rounds, agent = play(policy, "action_cache:ratio=0.4", observations(3))
    masks = None
    with torch.inference_mode():
        for each in rounds:
            by_hand = ActionByHand(anchors, 0.4, masks)
            expected = integrate(model, each.call, model.prefill(each.call.prefix), by_hand)
            torch.testing.assert_close(each.chunk, expected, rtol=1e-4, atol=1e-5)
            masks = by_hand.important()
    every = agent.counters()["neurons_computed"] + agent.counters()["neurons_reused"]
    total = every // (3 * steps * LAYERS)
    between = 2 * (steps - len(anchors)) * LAYERS
    assert agent.counters()["neurons_reused"] == between * (total - math.ceil(0.4 * total)) > 0


def test_the_anchors_are_steps_0_and_5_of_ten(policy, monkeypatch):
    """The steps between them take the output over where no neuron is computed."""
    asked = []
    inner = SelectedNeurons.ffn

    def spy(self, layer, x, ffn, rows):
        y = inner(self, layer, x, ffn, rows)
        if layer == 1:
            asked.append(y)
        return y

    monkeypatch.setattr(SelectedNeurons, "ffn", spy)
    play(policy, "action_cache:ratio=0", observations(2))
    second = asked[10:]
    same = [torch.equal(one, other) for one, other in zip(second[:-1], second[1:], strict=True)]
    assert same == [True] * 4 + [False] + [True] * 4


def test_weights_are_gathered_once_per_group(policy, monkeypatch):
    from replan.policies.gemma import GeGLU

    gathered, inner = [], GeGLU.incoming
    monkeypatch.setattr(GeGLU, "incoming", lambda self, n: gathered.append(len(n)) or inner(self, n))
    play(policy, "action_cache:ratio=0.5", observations(3))
    assert gathered == [48] * (2 * LAYERS) * 2  # groups and layers, in two rounds that have a reference


def test_a_group_has_its_anchor_where_its_first_step_is_computed(policy):
    """dp_cache leaves step 5 out: step 6 is then the anchor of the second group."""
    _, rounds, agent = play(policy, "action_cache:ratio=0.5+dp_cache", observations(2))
    assert agent.counters()["neurons_reused"] == (2 + 2) * 3 * 48  # steps 1 and 2, 8 and 9
    assert rounds[1].extra["neurons"] == pytest.approx((2 * 96 + 4 * 48) / (6 * 96))


def test_both_start_again_with_an_instruction_and_with_an_episode(policy):
    frames = [*observations(2), *observations(1, instruction="put the dog in the red bin")]
    dense, _, _ = play(policy, "dense", frames)
    chunks, rounds, agent = play(policy, "context_cache:ratio=0.2+action_cache:ratio=0.2", frames)
    assert [each.extra["neurons"] == each.extra["ffn_rows"] == 1 for each in rounds] == [True, False, True]
    assert torch.equal(chunks[[0, 2]], dense[[0, 2]]) and not torch.equal(chunks[1], dense[1])
    agent.reset(4)
    assert set(agent.counters().values()) == {0}
    agent.act(frames[2])
    assert agent.round.extra["neurons"] == agent.round.extra["ffn_rows"] == 1


@pytest.mark.parametrize(
    "spec", ["flash:delta=0+action_cache", "wam_cache+context_cache", "few_step:steps=4+action_cache"]
)
def test_they_compose(policy_with_draft, spec):
    _, rounds, agent = play(policy_with_draft, spec, observations(4))
    assert len(rounds) == 4
    for method in agent.methods.all:
        assert method.name == "flash" or all(agent.counters()[name] > 0 for name in method.activity_counters)


def test_rows_that_another_method_leaves_out_are_not_touched(policy):
    """With the FFN of all computed rows, the two together are the method that chooses rows, alone."""
    alone, _, _ = play(policy, "wam_cache", observations(4))
    both, _, _ = play(policy, "wam_cache+context_cache:ratio=1", observations(4))
    assert torch.equal(alone, both)
    sparse, rounds, _ = play(policy, "wam_cache+context_cache:ratio=0.5", observations(4))
    assert not torch.equal(sparse, alone) and rounds[1].extra["ffn_rows"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("context_cache:ratio=1.1", "share of visual tokens to compute is from 0 to 1, got 1.1"),
        ("context_cache:ratio=nan", "got nan"),
        ("action_cache:ratio=-0.1", "share of neurons to compute is from 0 to 1, got -0.1"),
        ("action_cache:anchors=1/5", "begin with 0"),
        ("action_cache:anchors=0/5/5", "rising order"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


def test_an_anchor_must_be_a_step(policy):
    with pytest.raises(ValueError, match="anchor at step 10 of 10"):
        ChunkAgent(policy, accel.parse("action_cache:anchors=0/10"))


def test_scores():
    now, before = torch.tensor([[3.0, 4.0], [0.0, 0.0], [2.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert drift(now, before).tolist() == pytest.approx([4 / 5, 0, 1])
    hidden = torch.tensor([[[1.0, -2.0, 0.0], [3.0, 0.0, -1.0]]])
    assert contribution(hidden, torch.tensor([1.0, 2.0, 3.0])).tolist() == [4, 4, 3]
    # The third is never among the two best of a step, though its sum is the largest.
    scores = torch.tensor([[[5.0, 0.0, 4.0, 4.5]], [[0.0, 5.0, 4.0, 4.5]]])
    assert sorted(important(scores, 0.5)[0].tolist()) == [0, 3] or sorted(important(scores, 0.5)[0].tolist()) == [1, 3]
