"""FLASH: the paper's algorithm step by step, its limit case, and every way back to the full path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replan import accel
from replan.accel.flash.draft import Draft, DraftConfig, draft_path, load_draft
from replan.accel.flash.method import Flash
from replan.accel.flash.training import draft_loss
from replan.eval.clock import RouteWithoutLatency, check_routes, parse_latency
from replan.kernels.decision import Channels, decide
from replan.policies import checkpoint
from replan.policies.agent import ChunkAgent
from replan.policies.checkpoint import CheckpointError
from replan.policies.model import Prefix
from verification import verifying


def run(policy, observation, spec, steps=31):
    """Actions and rounds of one observation seen again and again."""
    agent = ChunkAgent(policy, accel.parse(spec))
    actions, rounds = [], []
    for _ in range(steps):
        actions.append(agent.act(observation))
        if agent.round is not None:
            rounds.append(agent.round)
    return np.stack(actions), rounds, agent


def routes(rounds):
    return [each.route for each in rounds]


def test_delta_zero_executes_the_dense_actions_bit_for_bit(flash_policy, observation):
    dense, _, _ = run(flash_policy, observation, "dense")
    for options in ("", ":gripper=false", ":refresh=1"):
        flash, rounds, agent = run(flash_policy, observation, f"flash:delta=0{options}")
        assert np.array_equal(flash, dense)
        assert "flash" not in routes(rounds) and agent.counters().get("flash_rounds", 0) == 0


def test_a_rejected_draft_costs_both_paths_in_one_round(flash_policy, observation):
    _, rounds, agent = run(flash_policy, observation, "flash:delta=0:gripper=false")
    assert routes(rounds) == ["full", "fallback", "fallback", "fallback"]
    assert set(rounds[1].stages_ns) == {"encode", "draft", "verify", "prefill", "denoise"}
    assert rounds[1].accepted == 0 and len(rounds[1].actions) == 10
    assert agent.counters()["rejected"] == 3


def test_an_accepted_draft_skips_prefill_and_denoising_and_is_executed(flash_policy, observation):
    actions, rounds, agent = run(flash_policy, observation, "flash:delta=99:gripper=false")
    assert routes(rounds) == ["full", "flash", "flash", "flash"]
    assert set(rounds[1].stages_ns) == {"encode", "draft", "verify"}
    with torch.inference_mode():
        call = rounds[1].call
        draft = load_draft(draft_path(flash_policy.path), flash_policy.files)
        expected = flash_policy.processor.actions(draft(call.prefix, call.inputs.state)[0], observation["state"])
    assert np.array_equal(actions[10:20], expected[:10])
    counters = agent.counters()
    assert (counters["flash_rounds"], counters["accepted_actions"], counters["full_rounds"]) == (3, 30, 1)


def test_only_the_accepted_prefix_is_executed(flash_policy, observation):
    _, rounds, _ = run(flash_policy, observation, "flash:delta=99:gripper=false")
    verdict = verify(flash_policy, rounds[1].call)
    worst = verdict.distance.max(0).values[:10]
    delta = float(worst[:3].max()) + 1e-6  # at least three pass
    close = (verdict.distance[:, :10] <= delta).all(0).tolist()
    expected = close.index(False) if False in close else 10
    _, rounds, _ = run(flash_policy, observation, f"flash:delta={delta}:gripper=false", steps=11)
    assert rounds[1].accepted == len(rounds[1].actions) == expected >= 3


def verify(policy, call, context=None):
    method = Flash(gripper=False)
    method.attach(policy)
    with torch.inference_mode():
        method._context = context or policy.model.prefill(call.prefix)
        return method.verify(call, method.draft(call.prefix, call.inputs.state), method.delta)


def test_verification_is_algorithm_1(flash_policy, observation):
    """The reference: one verification point at a time, in the paper's own time (0 noise, 1 action)."""
    _, rounds, _ = run(flash_policy, observation, "flash:delta=99:gripper=false")
    call, model = rounds[1].call, flash_policy.model
    verdict = verify(flash_policy, call)
    with torch.inference_mode():
        draft = load_draft(draft_path(flash_policy.path), flash_policy.files)
        chunk = draft(call.prefix, call.inputs.state)
        context = model.condition(model.prefill(call.prefix), call.inputs)
        for branch, tau in enumerate((0.90, 0.95)):
            x = tau * chunk + (1 - tau) * call.noise
            velocity = -model.step(x, 1 - tau, context)  # openpi's points from action to noise
            endpoint = x + (1 - tau) * velocity
            torch.testing.assert_close(verdict.endpoints[branch], endpoint[0], rtol=1e-4, atol=1e-4)
            difference = (endpoint - chunk)[0, :, :6]
            expected = difference.norm(dim=-1) / 6**0.5
            torch.testing.assert_close(verdict.distance[branch], expected, rtol=1e-3, atol=1e-4)


def test_the_dense_chunk_verifies_better_than_a_random_one(flash_policy, observation):
    _, rounds, _ = run(flash_policy, observation, "flash:delta=99:gripper=false", steps=1)
    call, method = rounds[0].call, Flash()
    method.attach(flash_policy)
    with torch.inference_mode():
        method._context = call.context
        dense = method.verify(call, call.chunk, delta=0).distance
        shifted = method.verify(call, call.chunk + 1.0, delta=0).distance
    assert dense.mean() < shifted.mean()


def test_a_prefix_ends_at_the_first_action_that_any_branch_rejects():
    draft, one = torch.zeros(1, 5, 2), torch.tensor([[0.1, 0.1, 0.3, 0.1, 9], [0.1, 0.1, 0.1, 0.1, 9]])
    points = torch.stack([one, torch.full_like(one, 7)], -1)
    channels = Channels(torch.tensor([True, False]), torch.tensor([False, False]))

    def accepted(points, delta):
        still = torch.zeros_like(points), torch.zeros(2)
        judged = decide(points, *still, draft, channels, torch.zeros(2), window=4, delta=delta)
        assert torch.equal(judged.distance, points[..., 0]) and judged.numbers[1:].tolist() == pytest.approx([0, 0.3])
        return judged.numbers[0]

    assert accepted(points, 0.2) == 2
    assert accepted(points, 0.05) == 0
    assert accepted(points, float(one[0, 2])) == 4  # a distance of exactly delta is accepted
    assert accepted(points.flip(0), 0.2) == 2


def test_the_state_is_fresh_and_the_context_is_the_last_full_rounds(flash_policy, observation):
    agent = ChunkAgent(flash_policy, accel.parse("flash:delta=99:gripper=false:blind=0"))
    for _ in range(10):
        agent.act(observation)
    moved = {**observation, "state": observation["state"] + 1, "third": 255 - observation["third"]}
    seen = {}
    stages = agent.methods.stages

    def spy(context, inputs):
        seen["context"], seen["state"] = context, inputs.state
        return stages.condition(context, inputs)

    agent.methods.stages = stages._replace(condition=spy)
    agent.act(moved)
    assert agent.round.route == "flash"
    torch.testing.assert_close(seen["state"], flash_policy.processor.inputs(moved).state)
    old = flash_policy.model.prefill(flash_policy.model.encode(flash_policy.processor.inputs(observation)))
    torch.testing.assert_close(seen["context"].keys[1], old.keys[1])


def test_a_fallback_renews_the_context_and_the_age(flash_policy, observation):
    """What is verified after a fallback is verified against the fallback's context, not the one before."""
    (method,) = accel.parse("flash:delta=99:gripper=false:blind=0:max_age=20")
    agent = ChunkAgent(flash_policy, [method])
    turned = {**observation, "third": 255 - observation["third"]}
    for _ in range(10):
        agent.act(observation)
    method.delta = -1  # nothing is accepted
    agent.act(turned)
    assert agent.round.route == "fallback"
    assert method._context is agent.round.call.context and method._context_step == 10
    method.delta = 99
    for _ in range(9):
        agent.act(turned)
    seen, verify_ = [], method.verify

    def spy(call, chunk, delta):
        seen.append(method._context)
        return verify_(call, chunk, delta)

    method.verify = spy
    agent.act(turned)
    assert agent.round.route == "flash"  # at step 20 the first context would be too old
    new = flash_policy.model.prefill(flash_policy.model.encode(flash_policy.processor.inputs(turned)))
    torch.testing.assert_close(seen[0].keys[1], new.keys[1])


def test_the_verified_steps_are_those_that_would_be_executed(flash_policy, observation):
    """Acceptance ends at the first action that is too far off, and what lies behind the window is free."""
    for wrong, executed_actions in ((3, 3), (0, 10), (9, 9), (10, 10), (None, 10)):
        (method,) = accel.parse("flash:delta=0.15:gripper=false")
        agent = ChunkAgent(flash_policy, [method])
        for _ in range(10):
            agent.act(observation)
        distance = torch.zeros(2, 16)
        if wrong is not None:
            distance[1, wrong] = 0.16
        chunk = torch.zeros(2, 16, 7)
        verifying(method, distance, chunk)
        agent.act(observation)
        assert agent.round.route == ("fallback" if wrong == 0 else "flash")
        assert len(agent.round.actions) == executed_actions
        assert agent.round.accepted == (0 if wrong == 0 else executed_actions)


def test_the_distance_of_a_step_is_that_steps(flash_policy, observation):
    """One spoiled step of the draft stands out at its own place, and the gripper's channel does not count."""
    _, rounds, _ = run(flash_policy, observation, "flash:delta=99:gripper=false", steps=1)
    call, method = rounds[0].call, Flash()
    method.attach(flash_policy)

    def endpoints_of(chunk):
        stages = call.stages  # a velocity that leads from any point to zero
        call.stages = stages._replace(step=lambda x, times, context, ops: x / torch.tensor(times)[:, None, None])
        try:
            return method.verify(call, chunk, method.delta)
        finally:
            call.stages = stages

    with torch.inference_mode():
        method._context = call.context
        chunk = torch.zeros(1, 16, 7)
        chunk[0, 4, 2], chunk[0, 7, 6] = 6**0.5, 100.0
        distance = endpoints_of(chunk).distance
    expected = torch.zeros(2, 16)
    expected[:, 4] = 1  # the RMS over six channels of which one is off by the root of six
    torch.testing.assert_close(distance, expected, atol=1e-4, rtol=0)


def test_a_full_round_every_so_many_flash_rounds(flash_policy, observation):
    _, rounds, agent = run(flash_policy, observation, "flash:delta=99:gripper=false:refresh=2", steps=61)
    assert routes(rounds) == ["full", "flash", "flash", "full", "flash", "flash", "full"]
    assert agent.counters()["periodic"] == 2


def test_a_context_that_is_too_old_is_not_reused(flash_policy, observation):
    _, rounds, agent = run(flash_policy, observation, "flash:delta=99:gripper=false:max_age=20", steps=51)
    assert routes(rounds) == ["full", "flash", "full", "flash", "full", "flash"]
    assert agent.counters()["stale"] == 2


@pytest.mark.parametrize("camera", ["third", "wrist"])
@pytest.mark.parametrize("failed", [0, 128, 255])
def test_a_camera_that_fails_sends_the_round_to_the_full_path(flash_policy, observation, camera, failed):
    agent = ChunkAgent(flash_policy, accel.parse("flash:delta=99:gripper=false"))
    for _ in range(11):
        agent.act(observation)
    assert agent.round.route == "flash"
    for _ in range(10):
        agent.act({**observation, camera: np.full_like(observation[camera], failed)})
    assert agent.round.route == "full" and agent.counters()["blind"] == 1


def test_another_instruction_is_not_verified_against_the_context_of_the_last_one(flash_policy, observation):
    agent, taken = ChunkAgent(flash_policy, accel.parse("flash:delta=99:gripper=false")), []
    for step in range(41):
        instruction = observation["instruction"] if step < 20 else "put the dog in the blue bin"
        agent.act({**observation, "instruction": instruction})
        taken += [agent.round.route] if agent.round else []
    assert taken == ["full", "flash", "full", "flash", "flash"] and agent.counters()["first"] == 2


def test_a_view_that_stays_dark_is_the_new_measure_after_one_full_round(flash_policy, observation):
    agent = ChunkAgent(flash_policy, accel.parse("flash:delta=99:gripper=false"))
    dark, taken = {**observation, "third": observation["third"] // 10}, []
    for step in range(31):
        agent.act(dark if step >= 10 else observation)
        if agent.round is not None:
            taken.append(agent.round.route)
    assert taken == ["full", "full", "flash", "flash"] and agent.counters()["blind"] == 1


def test_a_view_that_only_moves_does_not_count_as_failed(flash_policy, observation):
    agent = ChunkAgent(flash_policy, accel.parse("flash:delta=99:gripper=false"))
    for step in range(31):
        moved = {name: np.roll(observation[name], 7 * step, 1) // (1 + step % 3) for name in ("third", "wrist")}
        agent.act({**observation, **moved})
    assert agent.counters()["flash_rounds"] == 3


def gripper_method(policy, observation, draft_gripper, branch_gripper):
    """A FLASH whose draft and branches hold chosen gripper values, [H] each."""
    method = Flash(delta=99)

    class FakeDraft(torch.nn.Module):
        def forward(self, prefix, state):
            chunk = torch.zeros(1, 16, 7)
            chunk[0, :, 6] = torch.tensor(draft_gripper)
            return chunk

    agent = ChunkAgent(policy, [method])
    method.draft = FakeDraft()
    agent.act(observation)
    endpoints = torch.zeros(2, 16, 7)
    endpoints[0, :, 6] = torch.tensor(draft_gripper)
    endpoints[1, :, 6] = torch.tensor(branch_gripper)
    verifying(method, torch.zeros(2, 16), endpoints)
    return agent


@pytest.mark.parametrize("spec", ["flash", "flash:verify=unless_switching"])
def test_a_draft_that_switches_the_gripper_is_verified_unless_the_saving_is_asked_for(flash_policy, observation, spec):
    """The paper looks for the switch in the verified branches, so verification is paid for by default."""
    (method,) = accel.parse(spec)
    agent = ChunkAgent(flash_policy, [method])
    method.draft = lambda prefix, state: torch.linspace(-1, 1, 16)[None, :, None].expand(1, 16, 7)
    for _ in range(11):
        agent.act(observation)
    round_ = agent.round
    if spec == "flash":
        assert round_.route == "fallback" and "distance" in round_.extra
        assert set(round_.stages_ns) == {"encode", "draft", "verify", "prefill", "denoise"}
        assert (round_.accepted, round_.drafted) == (0, 10)  # a verified draft of which nothing is executed
    else:
        assert round_.route == "unverified" and not round_.extra
        assert set(round_.stages_ns) == {"encode", "draft", "prefill", "denoise"}
        assert (round_.accepted, round_.drafted) == (None, None)
    assert agent.counters()["gripper_fallbacks"] == agent.counters()["drafted"] == 1
    assert agent.counters().get("rejected", 0) == 0


def test_what_is_verified_changes_the_cost_and_no_action(flash_policy, observation):
    def play(spec):
        (method,) = accel.parse(spec)
        agent, drafts, verify_ = ChunkAgent(flash_policy, [method]), [], method.verify

        def draft(prefix, state):  # every second one switches the gripper
            drafts.append(torch.full((1, 16, 7), 0.1))
            drafts[-1][..., 6] = flash_policy.processor.normalise_gripper(agent._executed[-1])
            drafts[-1][:, 5:, 6] *= (-1) ** len(drafts)
            return drafts[-1]

        def verify(call, chunk, delta):
            judged = verify_(call, chunk, delta)
            judged.endpoints[..., 6] = chunk[..., 6]
            verifying(method, judged.distance, judged.endpoints)
            try:
                return method.verify(call, chunk, delta)
            finally:
                method.verify = verify

        method.draft, method.verify = draft, verify
        agent.reset(4)
        return np.stack([agent.act(observation) for _ in range(80)]), agent.counters()

    always, saving = play("flash:delta=99"), play("flash:delta=99:verify=unless_switching")
    assert np.array_equal(always[0], saving[0]) and always[1] == saving[1]
    assert always[1]["gripper_fallbacks"] > 1 and always[1]["flash_rounds"] > 1  # rounds of both kinds were compared


def test_a_switch_in_the_draft_alone_goes_to_the_full_path(flash_policy, observation):
    """The draft is what would be executed, so that it counts although no branch agrees with it."""
    agent = gripper_method(flash_policy, observation, [-1.0] * 5 + [1.0] * 11, [-1.0] * 16)
    verifying(agent.methods.all[0], torch.zeros(2, 16), -torch.ones(2, 16, 7))
    executed(agent, flash_policy, [-1.0])
    agent.act(observation)
    assert agent.round.route == "fallback" and agent.counters()["gripper_fallbacks"] == 1


@pytest.mark.parametrize("verify_option", ["always", "unless_switching"])
def test_a_published_profile_charges_what_a_fallback_does(flash_policy, verify_option):
    """Profiles charge draft and verification for a fallback, and have no figure for a round without the latter."""
    (method,) = accel.parse(f"flash:verify={verify_option}")
    profile = parse_latency("profile:flash-triton-4090d")
    if verify_option == "always":
        check_routes(profile, {"flash": method.routes})
    else:
        with pytest.raises(RouteWithoutLatency, match="unverified"):
            check_routes(profile, {"flash": method.routes})


def executed(agent, policy, grippers):
    """Makes the agent's next act a round whose last executed action had these normalised gripper values."""
    agent._queue, agent._executed = [], []
    if grippers is not None:
        normal = torch.zeros(7)
        normal[list(policy.processor.gripper)] = torch.tensor(grippers)
        agent._executed = [policy.processor.actions(normal, np.zeros(11))]


@pytest.mark.parametrize(
    ("draft", "branch", "last", "falls_back"),
    [
        ([-1.0] * 16, [-1.0] * 16, -0.7, False),
        ([1.0] * 16, [1.0] * 16, 0.7, False),
        ([-1.0] * 16, [-1.0] * 9 + [1.0] * 7, -0.7, True),  # inside the window, in one branch
        ([-1.0] * 16, [-1.0] * 10 + [1.0] * 6, -0.7, False),  # behind the window
        ([1.0] * 16, [1.0] * 16, -0.7, True),  # against the last executed command
        ([-1.0] * 5 + [1.0] * 11, [-1.0] * 16, -0.7, True),  # in the draft that would be executed
        ([-1.0] * 16, [-1.0] * 16, None, False),
        ([-0.05] * 16, [-0.05] * 16, -0.05, False),  # the threshold is zero in the policy's space
        ([0.05] * 16, [0.05] * 16, 0.05, False),
        ([-0.05] * 16, [0.05] * 16, -0.05, True),
        ([0.05] * 16, [0.05] * 16, -0.05, True),
        ([0.4] * 16, [0.9] * 16, 0.4, False),
        ([-1.0] * 16, [1.0] * 16, None, True),
    ],
)
def test_a_gripper_switch_in_any_branch_goes_to_the_full_path(
    flash_policy, observation, draft, branch, last, falls_back
):
    agent = gripper_method(flash_policy, observation, draft, branch)
    executed(agent, flash_policy, None if last is None else [last])
    agent.act(observation)
    assert agent.round.route == ("fallback" if falls_back else "flash")
    assert agent.counters().get("gripper_fallbacks", 0) == falls_back


@pytest.mark.parametrize(("first", "last", "falls_back"), [(0.7, -0.7, False), (-0.7, 0.7, True)])
def test_a_switch_is_one_against_the_last_executed_action(flash_policy, observation, first, last, falls_back):
    agent = gripper_method(flash_policy, observation, [-1.0] * 16, [-1.0] * 16)
    executed(agent, flash_policy, [first])
    earlier = agent._executed
    executed(agent, flash_policy, [last])
    agent._executed = earlier + agent._executed
    agent.act(observation)
    assert agent.round.route == ("fallback" if falls_back else "flash")


@pytest.mark.parametrize(("last", "falls_back"), [((-0.7, 0.7), False), ((-0.7, -0.7), True), ((0.7, 0.7), True)])
def test_either_of_two_grippers_sends_the_round_to_the_full_path(flash_policy, observation, last, falls_back):
    two_armed = replace(flash_policy, processor=replace(flash_policy.processor, gripper=(5, 6)))
    agent = gripper_method(two_armed, observation, [0.0] * 16, [0.0] * 16)
    method = agent.methods.all[0]
    closed = torch.zeros(1, 16, 7)
    closed[..., 5], closed[..., 6] = -1, 1
    method.draft = lambda prefix, state: closed
    verifying(method, torch.zeros(2, 16), closed.expand(2, -1, -1))
    executed(agent, two_armed, last)
    agent.act(observation)
    assert agent.round.route == ("fallback" if falls_back else "flash")


def test_the_authors_way_of_rejecting_runs_the_full_path_in_the_next_round(flash_policy, observation):
    _, rounds, agent = run(flash_policy, observation, "flash:delta=0:gripper=false:reject=next", steps=13)
    assert routes(rounds) == ["full", "flash", "full"]
    assert (len(rounds[1].actions), rounds[1].accepted) == (1, 0) and agent.counters()["owed"] == 1


def test_an_episode_starts_with_a_full_round_and_fresh_counters(flash_policy, observation):
    _, _, agent = run(flash_policy, observation, "flash:delta=99:gripper=false")
    agent.reset(1)
    assert agent.counters() == {}
    agent.act(observation)
    assert agent.round.route == "full"


def test_flash_composes_with_a_schedule(flash_policy, observation):
    few, _, _ = run(flash_policy, observation, "few_step:steps=2", steps=20)
    both, rounds, _ = run(flash_policy, observation, "flash:delta=0:gripper=false+few_step:steps=2", steps=20)
    assert np.array_equal(both, few) and routes(rounds) == ["full", "fallback"]


def test_the_draft_masks_padding_and_lets_queries_see_everything(flash_policy):
    draft = load_draft(draft_path(flash_policy.path), flash_policy.files)
    generator = torch.Generator().manual_seed(0)
    embeddings, state = torch.randn(1, 20, 64, generator=generator), torch.randn(1, 11, generator=generator)
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[0, -3:] = False
    other = embeddings.clone()
    other[:, -3:] += 5
    with torch.inference_mode():
        masked, cut = draft(Prefix(embeddings, mask, 16), state), draft(Prefix(embeddings[:, :17], None, 16), state)
        torch.testing.assert_close(masked, cut, rtol=1e-4, atol=1e-5)
        assert torch.equal(draft(Prefix(other, mask, 16), state), masked)
        assert not torch.allclose(draft(Prefix(other, None, 16), state), draft(Prefix(embeddings, None, 16), state))
        assert not torch.allclose(draft(Prefix(embeddings, mask, 16), state + 1), masked)


def test_the_draft_equals_a_whole_block_that_computes_every_row(flash_policy):
    """The reference computes all rows of [prefix | state | queries] under the blockwise mask and reads the queries."""
    from replan.policies.gemma import rotary

    draft = load_draft(draft_path(flash_policy.path), flash_policy.files)
    generator = torch.Generator().manual_seed(0)
    embeddings, state = torch.randn(1, 20, 64, generator=generator), torch.randn(1, 11, generator=generator)
    with torch.inference_mode():
        x = torch.cat([embeddings, draft.state_in(state)[:, None], draft.queries[None]], 1)
        sees = torch.ones(1, 37, 37, dtype=torch.bool)
        sees[:, :21, 21:] = False
        rope = rotary(torch.arange(37)[None], 32, torch.float32)
        x = draft.layer.attend(x, *draft.layer.project(x, rope), sees)
        x = x + draft.layer.ffn(draft.layer.ffn_norm(x))
        # Gemma's norm, written out: the weight is added to one.
        root = x[:, 21:].square().mean(-1, keepdim=True).add(1e-6).sqrt()
        expected = F.linear(x[:, 21:] / root * (1 + draft.norm.weight), draft.head.weight, draft.head.bias)
        torch.testing.assert_close(draft(Prefix(embeddings, None, 16), state), expected, rtol=1e-4, atol=1e-5)


def test_without_options_it_is_the_papers():
    flash = Flash()
    assert (flash.delta, flash.tau, flash.refresh, flash.gripper) == (0.15, (0.90, 0.95), 0, True)
    assert (flash.max_age, flash.blind, flash.reject, flash.always) == (60, 0.25, "now", True)


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({"delta": 0.0}, True),
        ({"delta": -0.1}, False),
        ({"tau": (0.0,)}, True),
        ({"tau": (0.9,) * 32}, True),
        ({"tau": ()}, False),
        ({"tau": (0.9,) * 33}, False),
        ({"tau": (1.0,)}, False),
        ({"tau": (-0.1,)}, False),
        ({"refresh": 0, "max_age": 0, "blind": 0.0}, True),
        ({"blind": -0.1}, False),
        ({"max_age": -1}, False),
    ],
)
def test_options_end_at_their_limits(options, accepted):
    if accepted:
        Flash(**options)
    else:
        with pytest.raises(ValueError, match=next(iter(options))):
            Flash(**options)


def test_a_draft_of_other_weights_is_refused(flash_policy, tmp_path):
    other = tmp_path / "other.safetensors"
    other.write_bytes(flash_policy.path.read_bytes() + b" ")
    with pytest.raises(CheckpointError, match="other weights.*train-draft"):
        load_draft(draft_path(flash_policy.path), [other])
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_draft(tmp_path / "none.safetensors", [other])
    with pytest.raises(CheckpointError, match="not a FLASH draft"):
        load_draft(flash_policy.path, flash_policy.files)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 32}, "width"),
        ({"horizon": 8}, "'horizon': 8.*'horizon': 16"),
        ({"head_dim": 31}, "head_dim must be even"),
        ({"heads": 0}, "heads must be in 1..256, got 0"),
        ({"mlp": 2**40}, "mlp must be in"),
        ({"state_dim": "x"}, "state_dim must be int"),
    ],
)
def test_a_draft_of_other_dimensions_is_refused_before_it_is_run(flash_policy, tmp_path, change, message):
    path = tmp_path / "random.safetensors"
    path.write_bytes(flash_policy.path.read_bytes())
    config = {**vars(DraftConfig.of(flash_policy.model.config)), **change}
    try:
        draft = Draft(DraftConfig(**config))
    except (ValueError, TypeError, RuntimeError):
        draft = torch.nn.Linear(1, 1)
    header = checkpoint.Header("flash-draft", config, {}, {"policy_sha256": checkpoint.file_hash(path)})
    checkpoint.save(draft_path(path), header, draft)
    with pytest.raises(CheckpointError, match=rf"random.flash-draft.safetensors.*{message}"):
        ChunkAgent(replace(flash_policy, path=path), accel.parse("flash"))


def test_the_draft_starts_as_the_vlms_first_layer(flash_policy):
    draft = Draft(DraftConfig.of(flash_policy.model.config))
    draft.start_from(flash_policy.model.vlm[0], torch.Generator().manual_seed(0))
    assert torch.equal(draft.layer.qkv.weight, flash_policy.model.vlm[0].qkv.weight)


def test_early_steps_weigh_more_in_the_drafts_loss():
    target = torch.zeros(256, 16, 7)
    losses = []
    for step in (0, 5, 15):
        wrong = target.clone()
        wrong[:, step] = 1.0
        losses.append(float(draft_loss(wrong, target, torch.Generator().manual_seed(0))))
    assert losses[0] > 2 * losses[1] > 2 * losses[2] > 0
