"""Prints what methods that leave prefix rows out cost and how far their actions are from dense, on recorded rounds.

``python tools/prefix_methods.py [--policy pi0-tiny] [--rounds 12] [METHOD ...]`` lets the dense policy sort on the
conveyor, and shows every method the observations of its rounds. ``computed`` is the share of the visual tokens that the
prefill computed, averaged over layers and rounds; ``prefill`` its arithmetic (matrix products and attention, scoring
included); ``error`` the RMS distance of the executed actions to dense, normalised, over the continuous channels.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import replan.envs  # noqa: F401 (registers the environments)
import torch
from replan import accel
from replan.eval.bench import Products
from replan.policies.agent import ChunkAgent
from replan.policies.policy import Policy, load_policy

METHODS = (  # options that make prefills of about equal cost on pi0-tiny
    "wam_cache",
    *(f"wam_cache:rule={rule}" for rule in ("attention", "surprise", "pixels", "random", "drift")),
    *("vla_cache", "vla_cache:layers=all:relevant=0.3", "eventful:ratio=0.55"),
    *("fastv:layer=1:keep=0.5", "vla_pruner:layer=1:keep=0.3:window=1", "tome:merge=0.3"),
)


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="pi0-tiny")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    policy = load_policy(given.policy)
    episodes = record(policy, given.rounds)
    print(f"{policy.name}: {given.rounds} rounds of {len(episodes)} episodes")
    print(f"{'method':42} | computed | prefill MFLOP | error")
    for method in ("dense", *given.methods):
        computed, flops, errors = measure(policy, method, episodes)
        print(f"{method:42} | {computed:8.3f} | {flops / 1e6:13.1f} | {errors:.4f}", flush=True)


def record(policy: Policy, rounds: int) -> list[list[Any]]:
    """Returns the observations of the dense policy's rounds, per episode."""
    env: Any = gymnasium.make("replan/ConveyorSorting-v0", speed=10)
    agent, episodes, left = ChunkAgent(policy), [], rounds
    while left:
        observation, _ = env.reset(seed=len(episodes), options={"init_state": len(episodes)})
        agent.reset(len(episodes))
        episodes.append([])
        over = False
        while left and not over:
            if agent.needs_observation:
                episodes[-1].append(observation)
                left -= 1
            observation, _, terminated, truncated, _ = env.step(agent.act(observation))
            over = terminated or truncated
    env.close()
    return episodes


def measure(policy: Policy, method: str, episodes: list[list[Any]]) -> tuple[float, float, float]:
    """Returns the share of visual tokens computed, the prefill's operations and the error, averaged over rounds."""
    agent = ChunkAgent(policy, accel.parse(method))
    counter = Counting(agent)
    computed, flops, errors = [], [], []
    for seed, observations in enumerate(episodes):
        agent.reset(seed)
        for observation in observations:
            while not agent.needs_observation:
                agent.act(observation)
            agent.act(observation)
            assert agent.round is not None
            computed.append(agent.round.extra.get("refreshed", 1.0))
            flops.append(counter.flops)
            errors.append(agent.dense_error())
    return float(np.mean(computed)), float(np.mean(flops)), float(np.mean(errors))


class Counting:
    """Counts the operations of an agent's prefills.

    Attributes:
        flops: Of the last one.
    """

    def __init__(self, agent: ChunkAgent) -> None:
        stages = agent.methods.stages
        assert stages is not None
        self._prefill, self.flops = stages.prefill, 0
        agent.methods.stages = stages._replace(prefill=self)

    def __call__(self, prefix: Any, ops: Any) -> Any:
        """As the stage."""
        with Products() as products:
            context = self._prefill(prefix, ops)
        self.flops = sum(each.flops for each in products.all)
        return context


if __name__ == "__main__":
    main()
