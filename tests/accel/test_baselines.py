"""The trivial baselines and the later start: what they leave out, and that leaving nothing out is exactly dense."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from replan import accel
from replan.policies.agent import ChunkAgent
from replan.policies.policy import Policy


def observations(count, step=8, instruction="put the hairbrush in the red bin"):
    """A scene in which a bright square moves over a background that stays, and the state with it."""
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 128, (64, 64, 3), np.uint8) for camera in ("third", "wrist")}
    for number in range(count):
        now = {camera: image.copy() for camera, image in images.items()}
        left = step * number % 56
        now["third"][16:32, left : left + 8] = 255
        yield {**now, "state": np.full(11, number / 10, np.float32), "instruction": instruction}


def play(policy, spec, frames, seed=3):
    """One observation per control step; returns the actions, the rounds and the agent."""
    agent = ChunkAgent(policy, accel.parse(spec))
    agent.reset(seed)
    actions, rounds = [], []
    for observation in frames:
        actions.append(agent.act(observation))
        if agent.round is not None:
            rounds.append(agent.round)
    return np.stack(actions), rounds, agent


def spy_on(model, monkeypatch, *stages):
    """Counts the calls of stages of a model."""
    calls = dict.fromkeys(stages, 0)

    def counting(name, stage):
        def run(*arguments):
            calls[name] += 1
            return stage(*arguments)

        return run

    for name in stages:
        monkeypatch.setattr(model, name, counting(name, getattr(model, name)))
    return calls


@pytest.fixture(scope="module")
def families(policy, randomised):
    """A small policy of every family, with the processor of pi0: what it reads and writes is the same for all."""
    from replan.policies import fast_wam, pi05, xvla

    small = dict(vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
    wam = dict(depth=3, width=48, mlp=64, heads=2, action_width=32, action_mlp=48, steps=4)
    made = {
        "pi0.5": pi05.Pi05(replace(pi05.TINY, **small)),
        "fast_wam": fast_wam.FastWAM(replace(fast_wam.TINY, **wam)),
        "x_vla": xvla.XVLA(replace(xvla.TINY, depth=3, width=48, mlp=64)),
    }
    own = {name: Policy(name, Path(name), (), randomised(model), policy.processor, {}) for name, model in made.items()}
    robot = xvla.XVLAProcessor(**vars(policy.processor))
    return {"pi0": policy, **own, "x_vla": replace(own["x_vla"], processor=robot)}


@pytest.fixture(params=["pi0", "pi0.5", "fast_wam", "x_vla"])
def every(request, families):
    return families[request.param]


LIMITS = ["window:execute=10", "hold:rounds=0", "stale_prefix:every=1", "warm_start:tau=1"]


@pytest.mark.parametrize("spec", LIMITS)
def test_the_limit_is_dense_bit_for_bit_in_every_family(every, spec):
    if spec.startswith("stale") and every.model.state_in_prefix:
        pytest.skip("refused, see below")
    frames = list(observations(21))
    dense, _, _ = play(every, "dense", frames)
    limit, rounds, agent = play(every, spec, frames)
    assert np.array_equal(limit, dense) and {each.route for each in rounds} == {"full"}
    assert set(agent.counters().values()) == {0}


@pytest.mark.parametrize(
    ("spec", "counter", "moved"),
    [("window:execute=3", "rewindowed_rounds", 7), ("hold", "held_rounds", 1), ("stale_prefix", "stale_rounds", 1)],
)
def test_counters_move_and_start_again_with_each_episode(policy, spec, counter, moved):
    frames = list(observations(21))
    dense, _, _ = play(policy, "dense", frames)
    actions, _, agent = play(policy, spec, frames)
    assert agent.counters()[counter] == moved and counter in agent.methods.all[0].activity_counters
    assert not np.array_equal(actions, dense)
    agent.reset(4)
    agent.act(frames[0])
    assert agent.counters()[counter] == (counter == "rewindowed_rounds")


@pytest.mark.parametrize(("execute", "starts"), [(1, range(12)), (5, [0, 5, 10]), (16, [0])])
def test_a_window_is_how_many_actions_are_executed(policy, execute, starts):
    _, rounds, _ = play(policy, f"window:execute={execute}", observations(12))
    assert [each.call.control_step for each in rounds] == list(starts)
    assert {(each.window, len(each.actions)) for each in rounds} == {(execute, execute)}


def test_a_window_beyond_the_chunk_or_below_one_action_is_refused(policy):
    with pytest.raises(ValueError, match="cannot execute 17 actions: the chunks of random have 16"):
        ChunkAgent(policy, accel.parse("window:execute=17"))
    with pytest.raises(ValueError, match="at least 1 action of a chunk, got 0"):
        accel.parse("window:execute=0")


def test_what_is_held_is_the_rest_of_the_chunk_and_nothing_runs_for_it(policy, monkeypatch):
    calls = spy_on(policy.model, monkeypatch, "encode", "prefill", "step")
    actions, rounds, agent = play(policy, "hold:rounds=2", observations(32))
    assert [(each.route, len(each.actions)) for each in rounds] == [("full", 10), ("held", 6)] * 2
    assert np.array_equal(actions[:16], policy.processor.actions(rounds[0].chunk[0], np.zeros(11)))
    assert calls == {"encode": 2, "prefill": 2, "step": 20} and rounds[1].stages_ns == {}
    assert agent.counters() == {"held_rounds": 2, "held_actions": 12}


def test_at_most_so_many_rounds_in_a_row_are_held(policy):
    for rounds, routes in ((1, "full held full held"), (2, "full held held full"), (9, "full held held held")):
        agent = ChunkAgent(policy, accel.parse(f"hold:rounds={rounds}"), window=4)
        taken = [agent.round.route for each in observations(16) if agent.act(each) is not None and agent.round]
        assert " ".join(taken) == routes


@pytest.mark.parametrize("spec", ["hold", "warm_start"])
def test_nothing_of_a_chunk_outlives_its_instruction_or_its_episode(policy, spec):
    first, other = list(observations(10)), list(observations(1, instruction="put the dog in the red bin"))
    dense, _, _ = play(policy, "dense", [*first, *other])
    actions, _, agent = play(policy, spec, [*first, *other])
    assert np.array_equal(actions, dense) and agent.counters()[agent.methods.all[0].activity_counters[0]] == 0
    agent.reset(3)
    assert np.array_equal(agent.act(first[0]), dense[0])


@pytest.mark.parametrize("spec", ["hold", "warm_start"])
def test_actions_that_are_relative_to_a_state_are_not_taken_over(policy, spec):
    relative = replace(policy, processor=replace(policy.processor, relative=True))
    with pytest.raises(ValueError, match="cannot go on with the chunks of random: its actions are relative"):
        ChunkAgent(relative, accel.parse(spec))


@pytest.mark.parametrize("family", ["pi0", "x_vla"])
def test_a_stale_round_reads_the_kept_context_with_a_fresh_state_and_fresh_noise(families, family, monkeypatch):
    policy = families[family]
    calls = spy_on(policy.model, monkeypatch, "encode", "prefill")
    _, rounds, _ = play(policy, "stale_prefix:every=3", observations(41))
    assert [each.route for each in rounds] == ["full", "stale", "stale", "full", "stale"]
    assert calls == {"encode": 2, "prefill": 2} and set(rounds[1].stages_ns) == {"denoise"}
    model, call = policy.model, rounds[2].call
    with torch.inference_mode():
        context = model.condition(model.prefill(model.encode(rounds[0].call.inputs)), call.inputs)
        times, x = model.flow.schedule().times, call.noise
        for time, later in zip(times[:-1], times[1:], strict=True):
            x = model.flow.advance(x, model.step(x, time, context), call.noise, time, later)
        torch.testing.assert_close(rounds[2].chunk, x)
        old = model.condition(call.context, rounds[0].call.inputs)
        assert not torch.equal(model.step(call.noise, 1.0, old), model.step(call.noise, 1.0, context))


def test_what_the_cameras_see_or_the_prompt_says_triggers_a_prefill(policy):
    still = list(observations(1)) * 31
    dark = [{**each, "third": each["third"] // 2} for each in still]
    cases = [
        (still, "9", "full stale stale stale"),
        ([*still[:20], *dark[:11]], "9", "full stale full stale"),
        ([*still[:20], *dark[:11]], "99", "full stale stale stale"),
        ([*still[:10], *observations(21, step=0, instruction="put the dog in the red bin")], "99", "full full stale"),
    ]
    for frames, trigger, routes in cases:
        _, rounds, agent = play(policy, f"stale_prefix:every=9:trigger={trigger}", frames)
        assert " ".join(each.route for each in rounds).startswith(routes)
        assert agent.counters()["triggered"] == (trigger == "9" and frames is not still)
    moved = np.abs(dark[0]["third"].astype(float) - still[0]["third"]).mean()
    _, rounds, _ = play(policy, "stale_prefix:trigger=0", [*still[:10], *dark[:1]])
    assert rounds[1].extra["moved"] == pytest.approx(moved, rel=1e-3)  # levels of 255, of the view that moved most


def test_a_context_that_contains_the_state_is_never_stale(families):
    with pytest.raises(ValueError, match="'stale_prefix' cannot run on fast_wam: its state enters with the prefix"):
        ChunkAgent(families["fast_wam"], accel.parse("stale_prefix"))


@pytest.mark.parametrize("other", ["hold", "flash", "wam_cache", "context_cache"])
def test_what_would_not_know_that_a_context_is_old_is_refused(other):
    with pytest.raises(ValueError, match="cannot be combined"):
        accel.parse(f"stale_prefix+{other}")


def test_a_warm_start_integrates_the_rest_of_the_dense_steps_from_the_shifted_chunk(every, monkeypatch):
    """The reference: by hand from what the last round left, with the family's own direction of time and sampler."""
    _, rounds, agent = play(every, "warm_start:tau=0.5", observations(11))
    model, call, flow = every.model, rounds[1].call, every.model.flow
    last = rounds[0].chunk
    shifted = torch.cat([last[:, 10:], last[:, -1:].expand(-1, 10, -1)], 1)
    dense = flow.schedule().times
    times = [flow.time(0.5), *(time for time in dense if float(flow.progress(time)) > 0.5 + 1e-6)]
    with torch.inference_mode():
        context = model.condition(model.prefill(model.encode(call.inputs)), call.inputs)
        x = 0.5 * shifted + 0.5 * call.noise
        for time, later in zip(times[:-1], times[1:], strict=True):
            x = flow.advance(x, model.step(x, time, context), call.noise, time, later)
    torch.testing.assert_close(rounds[1].chunk, x, rtol=1e-4, atol=1e-4)
    assert agent.counters() == {"warm_rounds": 1} and len(call.schedule.computed) == len(times) - 1 < flow.steps


def test_a_warm_start_runs_in_the_other_direction_of_time(randomised, policy):
    """GR00T's time runs from noise 0 to action 1."""
    from replan.policies import groot

    config = replace(groot.TINY, steps=4)
    made = randomised(groot.Groot(config))
    flow = made.flow
    assert flow.noise_time == 0
    method, noise = accel.parse("warm_start:tau=0.25")[0], torch.ones(1, *made.noise_shape)
    method._last._chunk, method._last._step, method._last._instruction = 3 * noise, 0, "go"
    start = method.init(type("Call", (), {"instruction": "go", "control_step": 2, "noise": noise})(), flow)
    assert start.time == 0.75 and torch.equal(start.x, 0.75 * 3 * noise + 0.25 * noise)
    assert flow.schedule().starting_at(start.time).times == (0.75, 1.0)


@pytest.mark.parametrize("spec", ["warm_start+few_step:steps=4", "warm_start+dp_cache", "warm_start+stale_prefix"])
def test_a_warm_start_composes_with_fewer_steps_and_a_stale_prefix(policy, spec):
    _, _, agent = play(policy, spec, observations(11))
    assert agent.counters()["warm_rounds"] == 1 and min(
        agent.counters()[c] for c in agent.counters() if c != "triggered"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hold:rounds=-1", "hold takes 0 or more rounds, got -1"),
        ("stale_prefix:every=0", "every 1 or more rounds, got 0"),
        ("stale_prefix:trigger=-1", "at least 0, got -1"),
        ("stale_prefix:trigger=nan", "at least 0, got nan"),
        ("warm_start:tau=0", "above 0 and at most 1, got 0.0; to start from none, write hold"),
        ("warm_start:tau=nan", "got nan"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)
