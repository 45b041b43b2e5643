"""WAM-Cache on Fast-WAM, and on pi0, whose prefix offers the same seam."""

import pytest
import torch
from replan import accel
from replan.accel.rows import attention_mass, largest, movement
from replan.accel.wam_cache import RULES, WAMCache
from replan.policies.agent import ChunkAgent
from replan.policies.fast_wam import FastWAM
from replan.policies.model import Ops
from rounds import VISUAL, observations, play
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@pytest.mark.parametrize("family", ["wam", "policy"])
@pytest.mark.parametrize("spec", ["wam_cache:attention=1", "wam_cache:surprise=1:attention=0"])
def test_a_refresh_set_of_all_tokens_is_dense_bit_for_bit(request, family, spec):
    policy = request.getfixturevalue(family)
    dense, _, _ = play(policy, "dense", observations(4))
    all_rows, rounds, agent = play(policy, spec, observations(4))
    assert torch.equal(all_rows, dense)
    assert agent.counters() == {"rows_reused": 0, "rows_computed": 4 * VISUAL}
    assert {each.route for each in rounds} == {"full"}


@pytest.mark.parametrize("family", ["wam", "policy"])
def test_nothing_changes_while_nothing_changes(request, family):
    policy = request.getfixturevalue(family)
    dense, _, _ = play(policy, "dense", observations(4, moving=False))
    cached, rounds, _ = play(policy, "wam_cache:attention=0:surprise=0:age=0", observations(4, moving=False))
    torch.testing.assert_close(cached, dense, rtol=2e-5, atol=2e-5)
    assert [each.route for each in rounds] == ["full", "sparse", "sparse", "sparse"]
    assert [each.extra["refreshed"] for each in rounds] == [1, 0, 0, 0]


def test_the_first_round_of_an_episode_and_of_an_instruction_is_dense(wam):
    frames = list(observations(3))
    frames[2]["instruction"] = "put the dog in the red bin"
    _, rounds, agent = play(wam, "wam_cache", frames)
    assert [each.route for each in rounds] == ["full", "sparse", "full"]
    agent.reset(4)
    agent.act(frames[2])
    assert agent.round.route == "full" and agent.counters()["rows_reused"] == 0


def test_no_token_is_reused_more_often_than_its_age_allows(wam):
    for age, expected in ((1, [1, 0, 1, 0, 1]), (2, [1, 0, 0, 1, 0])):
        _, rounds, _ = play(wam, f"wam_cache:attention=0:surprise=0:age={age}", observations(5))
        assert [each.extra["refreshed"] for each in rounds] == expected


def test_error_falls_as_the_budget_grows(wam):
    dense, _, _ = play(wam, "dense", observations(6))
    errors = []
    for share in (0, 0.25, 0.5, 1):
        chunks, _, _ = play(wam, f"wam_cache:attention=0:surprise={share}:age=0", observations(6))
        errors.append(float((chunks - dense).norm()))
    assert errors == sorted(errors, reverse=True) and errors[-1] == 0 < errors[0]


def chosen_rows(policy, spec, frames):
    """The visual rows that each round computes."""
    agent = ChunkAgent(policy, accel.parse(spec), window=1)
    agent.reset(3)
    rows = []
    for observation in frames:
        agent.act(observation)
        chosen = agent.methods.all[0].prefill_ops().chosen
        rows.append(set(range(VISUAL)) if chosen is None else {int(row) for row in chosen if row < VISUAL})
    return rows


def under_the_square(number):
    """Tokens of 8 x 8 pixels under the square, in the first of two views that lie side by side."""
    return {row * 16 + column for row in (2, 3) for column in (number % 8, (number - 1) % 8)}


@pytest.mark.parametrize("rule", ["pixels", "surprise", "drift"])
def test_rules_that_look_at_the_image_choose_what_moved(wam, rule):
    frames = list(observations(4))
    rows = chosen_rows(wam, f"wam_cache:attention=0:surprise=0.1:age=0:rule={rule}", frames)
    for number in (1, 2, 3):
        assert len(rows[number]) == 13
        if rule == "pixels":  # exactly; the image encoder smears a change over its neighbours
            assert under_the_square(number) <= rows[number]
        else:
            assert rows[number] & under_the_square(number)


def test_attention_chooses_what_the_actions_attended_to_at_the_first_step_of_the_round_before(wam, monkeypatch):
    frames = list(observations(3))
    seen = []
    step = FastWAM.step

    def watch(self, x, time, context, ops):
        class Tap(Ops):
            def attended(self, layer, q, k):
                seen.append((float(time), attention_mass(q, k, VISUAL)))
                ops.attended(layer, q, k)

        return step(self, x, time, context, Tap())

    monkeypatch.setattr(FastWAM, "step", watch)
    rows = chosen_rows(wam, "wam_cache:attention=0.1:surprise=0:age=0", frames)
    per_round = len(seen) // 3
    for number in (1, 2):
        before = [mass for time, mass in seen[(number - 1) * per_round : number * per_round] if time == 1.0]
        assert len(before) == wam.model.config.depth
        assert rows[number] == set(torch.stack(before).sum(0).topk(13).indices.tolist())


def test_the_oracle_keeps_closer_to_dense_than_chance_does(wam):
    """Table 3's upper bound: on a scene that moves, computing what has drifted most beats computing anything."""
    dense, _, _ = play(wam, "dense", observations(8))
    error = {
        rule: float(
            (play(wam, f"wam_cache:attention=0.2:surprise=0:age=0:rule={rule}", observations(8))[0] - dense).norm()
        )
        for rule in ("drift", "random")
    }
    assert 0 < error["drift"] < 0.8 * error["random"]


def test_random_rows_differ_between_rounds_and_not_between_runs(wam):
    first, second = (
        chosen_rows(wam, "wam_cache:rule=random:age=0:attention=0.5:surprise=0", observations(4)) for _ in range(2)
    )
    assert first == second and len({frozenset(rows) for rows in first[1:]}) == 3


def test_it_composes_with_fewer_steps(wam):
    _, rounds, agent = play(wam, "wam_cache+few_step:steps=2", observations(3))
    assert [each.route for each in rounds] == ["full", "sparse", "sparse"]
    assert agent.counters()["steps_saved"] == 3 and agent.counters()["rows_reused"] > 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wam_cache:attention=1.1", "shares from 0 to 1, got 1.1 and 0.1"),
        ("wam_cache:attention=-0.1", "got -0.1 and 0.1"),
        ("wam_cache:surprise=1.1", "got 0.4 and 1.1"),
        ("wam_cache:surprise=-0.1", "got 0.4 and -0.1"),
        ("wam_cache:surprise=nan", "got 0.4 and nan"),
        ("wam_cache:age=-1", "age must be 0 or more"),
        ("wam_cache:rule=newest", "rule one of both, attention"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


def test_without_options_it_is_the_papers():
    method = WAMCache()
    assert (method.attention, method.surprise, method.age, method.rule) == (0.4, 0.1, 2, "both")


def test_a_rule_of_its_own_has_both_shares_and_never_more_than_all_tokens(wam):
    frames = list(observations(3))
    _, rounds, agent = play(wam, "wam_cache:attention=0.7:surprise=0.6:rule=pixels", frames)
    assert {each.route for each in rounds} == {"full"} and agent.counters()["rows_reused"] == 0
    assert len(chosen_rows(wam, "wam_cache:attention=0.2:surprise=0.05:age=0:rule=pixels", frames)[1]) == VISUAL // 4


def test_pixels_are_compared_with_the_round_before(wam):
    """A square that came one round ago and stays has not moved; one that has gone has."""
    first, second, *_ = observations(2)
    rows = chosen_rows(wam, "wam_cache:attention=0:surprise=0.05:age=0:rule=pixels", [first, second, second, first])
    assert under_the_square(1) <= rows[1] and under_the_square(1) <= rows[3]
    assert not under_the_square(1) <= rows[2]


@pytest.mark.parametrize("rule", RULES)
def test_the_prefill_of_every_rule_costs_what_the_papers_accounting_says(wam, rule):
    """Appendix B, with the share of tokens that the round reports."""
    model, counted = wam.model, []
    agent = ChunkAgent(wam, accel.parse(f"wam_cache:rule={rule}:age=0"), window=1)
    stages = agent.methods.stages

    def flops(call):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as mode:  # of the CPU's own it knows nothing
            call()
        return mode.get_total_flops()

    def prefill(prefix, ops):
        context = stages.prefill(prefix, ops)  # what it keeps of the text is not counted
        whole = flops(lambda: stages.prefill(prefix, ops))
        counted.append(whole - flops(lambda: (model.video.read(prefix), model.action.read(prefix))))
        return context

    agent.methods.stages = stages._replace(prefill=prefill)
    agent.reset(3)
    for number, observation in enumerate(observations(3)):
        agent.act(observation)
        rows = round(agent.round.extra["refreshed"] * VISUAL)
        assert rows == (pytest.approx(0.5 * VISUAL, abs=13) if number else VISUAL)
        assert counted[-1] == model.prefill_flops(rows, VISUAL, agent.round.call.prefix.words.shape[1] + 1)


def test_counters_are_of_visual_rows_and_start_anew_with_an_episode(wam):
    _, rounds, agent = play(wam, "wam_cache:attention=0.25:surprise=0:age=0", observations(3))
    assert agent.counters() == {"rows_reused": 2 * 96, "rows_computed": VISUAL + 2 * 32}
    assert [each.extra["refreshed"] for each in rounds] == [1, 0.25, 0.25]
    agent.reset(3)
    assert agent.counters() == {"rows_reused": 0, "rows_computed": 0}


def test_scores():
    assert largest(torch.tensor([1.0, 5.0, 3.0, 2.0]), 0.5).tolist() == [False, True, True, False]
    assert largest(torch.tensor([1.0, 5.0]), 0.1).sum() == 1 and not largest(torch.tensor([1.0, 5.0]), 0).any()
    moved = movement(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
    assert moved.tolist() == pytest.approx([4 / 4, 0], abs=1e-5)
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 5, 3, 4)
    assert attention_mass(q, k, 2).tolist() == pytest.approx([0.2, 0.2])
    k[:, 1] = torch.tensor([8.0, 0, 0, 0])
    q[:, 0] = torch.tensor([8.0, 0, 0, 0])  # one of two queries attends to the second key alone
    shared = attention_mass(q, k[:, :, 0], 2)
    assert shared.tolist() == pytest.approx([0.1, 0.6], abs=1e-5)
    assert torch.allclose(attention_mass(q, k, 2), shared)


def test_the_mass_is_that_of_scaled_attention_and_movement_is_relative_to_both_sizes():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 2, 3, 16, generator=generator), torch.randn(1, 5, 3, 16, generator=generator)
    weights = torch.einsum("rhd,shd->hrs", q[0], k[0]).div(4).softmax(-1)  # 4 is the root of 16
    torch.testing.assert_close(attention_mass(q, k, 2), weights.mean((0, 1))[:2])
    now, before = torch.randn(2, 3, 7, generator=generator).unbind()
    expected = [2 * (a - b).norm() / (a.norm() + b.norm()) for a, b in zip(now, before, strict=True)]
    torch.testing.assert_close(movement(now, before), torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert 0 < float(movement(torch.full((1, 1), 1e-6), torch.zeros(1, 1))) < 1  # 1e-6 / (0.5e-6 + 1e-6)
