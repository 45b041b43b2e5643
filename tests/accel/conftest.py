"""Random tiny policies of the families whose prefixes offer rows, and `rounds` by name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from replan.policies import fast_wam, pi05
from replan.policies.policy import Policy

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def wam(policy, randomised):
    config = replace(fast_wam.TINY, depth=3, width=48, mlp=64, heads=2, action_width=32, action_mlp=48, steps=3)
    return Policy("wam", Path("wam"), (), randomised(fast_wam.FastWAM(config)), policy.processor, {})


@pytest.fixture(scope="session")
def pi05_policy(policy, randomised):
    config = replace(pi05.TINY, vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
    return Policy("pi05", Path("pi05"), (), randomised(pi05.Pi05(config)), policy.processor, {})
