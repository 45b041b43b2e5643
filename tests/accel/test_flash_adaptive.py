"""FLASH's adaptive verifier: the fixed one at its limit, tighter in demanding moments and looser in easy ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel.flash.strain import Strain
from replan.policies.agent import ChunkAgent
from verification import verifying

IMAGES = torch.zeros(1, 2, 3, 8, 8)
SMOOTH = torch.arange(10.0)[:, None].expand(10, 6)
BENT = SMOOTH * torch.tensor([1.0, -1.0]).repeat(5)[:, None]


def call(change):
    images = IMAGES.clone()
    images[:, 1] += change
    return SimpleNamespace(inputs=SimpleNamespace(images=images))


def relief(power, *moments):
    strain = Strain(power)
    return [strain.relief(call(change), IMAGES, motion) for change, motion in moments]


def test_the_first_moment_is_the_measure_of_the_others():
    assert relief(1.0, (0.1, SMOOTH)) == [1.0]
    assert relief(1.0, *[(0.1, BENT)] * 4) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("demanding", [(0.3, SMOOTH + 0.001 * BENT), (0.1, BENT)])
def test_a_threshold_is_tighter_where_views_change_or_motion_bends_and_looser_where_not(demanding):
    easy = (0.1, SMOOTH + 0.001 * BENT)
    tight, loose = relief(1.0, easy, demanding)[1], relief(1.0, demanding, easy)[1]
    assert 0.5 <= tight < 1 < loose <= 2
    assert relief(0.5, easy, demanding)[1] > tight  # a smaller power follows less


def test_both_cues_count_the_same_and_no_moment_more_than_twofold():
    assert relief(1.0, (0.1, SMOOTH), (0.3, SMOOTH))[1] == pytest.approx((0.2 / 0.3) ** 0.5, rel=1e-3)
    assert relief(8.0, (0.1, SMOOTH), (1.0, BENT))[1] == 0.5
    assert relief(8.0, (1.0, BENT), (0.1, SMOOTH))[1] == 2.0


def test_an_episode_begins_without_a_measure_and_short_windows_bend_nowhere():
    strain = Strain(1.0)
    strain.relief(call(0.1), IMAGES, SMOOTH)
    strain.begin()
    assert strain.relief(call(1.0), IMAGES, BENT) == 1.0
    assert relief(1.0, (0.1, SMOOTH[:2]), (0.1, BENT[:2])) == [1.0, 1.0]


@pytest.mark.parametrize("power", [-0.1, float("nan"), float("inf")])
def test_a_power_is_a_finite_number_of_at_least_0(power):
    with pytest.raises(ValueError, match="adapt must be"):
        Strain(power)


def play(policy, observation, spec, distance=None):
    """Rounds while the scene changes at every second one."""
    (method,) = accel.parse(spec)
    agent, rounds = ChunkAgent(policy, [method]), []
    agent.reset(5)
    if distance is not None:
        verifying(method, torch.full((2, 16), distance), torch.zeros(2, 16, 7))
    for step in range(61):
        moved = np.roll(observation["third"], 5 * (step // 20), 1)
        agent.act({**observation, "third": moved})
        rounds += [agent.round] if agent.round else []
    return rounds


def test_without_power_the_verifier_is_the_fixed_one_bit_for_bit(flash_policy, observation):
    for options in ("delta=1:gripper=false", "delta=0.6", "delta=0"):
        fixed = play(flash_policy, observation, f"flash:{options}")
        limit = play(flash_policy, observation, f"flash:{options}:adapt=0")
        assert all(
            np.array_equal(a.actions, b.actions) and a.route == b.route for a, b in zip(fixed, limit, strict=True)
        )
        assert not any("delta" in each.extra for each in limit)


def test_no_power_accepts_anything_at_the_dense_limit(flash_policy, observation):
    rounds = play(flash_policy, observation, "flash:delta=0:gripper=false:adapt=3", distance=1e-9)
    assert {each.route for each in rounds} == {"full", "fallback"}


def test_rounds_report_their_threshold_and_are_accepted_by_it(flash_policy, observation):
    rounds = play(flash_policy, observation, "flash:delta=0.2:gripper=false:blind=0:adapt=1", distance=0.2)
    drafted = [each for each in rounds if each.drafted]
    thresholds = [each.extra["delta"] for each in drafted]
    assert thresholds[0] == 0.2 and len(set(thresholds)) > 2 and all(0.1 <= each <= 0.4 for each in thresholds)
    assert [each.accepted for each in drafted] == [10 * (np.float32(0.2) <= each) for each in thresholds]
