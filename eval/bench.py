"""Where an evaluation finds its suites, policies and methods: the one place that joins the other packages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from ..envs import Suite
    from ..policies.checkpoint import Header
    from ..policies.policy import Policy, Round


class Agent(Protocol):
    """What the runner asks of whoever acts.

    Attributes:
        round: The policy call that the last ``act`` made, or None where it took an action that was already planned.
    """

    round: Round | None

    @property
    def needs_observation(self) -> bool:
        """Whether the next ``act`` will call the policy, and so look at the observation."""
        ...

    def reset(self, seed: int) -> None:
        """Begins an episode; everything random in it comes from the seed."""
        ...

    def act(self, observation: Any) -> np.ndarray:
        """Returns the next action, float32 [A], in the environment's own convention."""
        ...

    def counters(self) -> dict[str, float]:
        """Returns what the method did since ``reset``."""
        ...

    def dense_error(self) -> float:
        """Returns the distance of the last call's actions to the dense policy's under the same noise."""
        ...


class Bench:
    """The suites, policies and methods of this package.

    A worker process gets a pickled copy and builds its own environments and agents with it. Tests give the runner a
    bench of their own.
    """

    def __init__(self) -> None:
        """Starts with nothing loaded."""
        self._policies: dict[str, Policy] = {}  # one copy of the weights a process, whatever the number of methods

    def suites(self) -> Mapping[str, Suite]:
        """Returns the suites by name."""
        from ..envs import SUITES

        return SUITES

    def environment(self, suite: Suite, settings: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
        """Builds the environment of a suite.

        Raises:
            ValueError: The environment refuses a setting.
        """
        import gymnasium

        from .. import envs  # noqa: F401  # registers the environments

        return gymnasium.make(suite.env_id, disable_env_checker=True, **settings)

    def agent(self, policy: str, method: str) -> Agent:
        """Loads a policy and gives it a method.

        Raises:
            ValueError: The method does not exist or does not fit the policy, or the checkpoint cannot be used.
        """
        import torch

        from .. import accel
        from ..policies.agent import ChunkAgent
        from ..policies.policy import load_policy

        torch.set_num_threads(1)  # more would make workers wait for each other, and change sums
        if policy not in self._policies:
            self._policies[policy] = load_policy(policy, device="cuda" if torch.cuda.is_available() else "cpu")
        return ChunkAgent(self._policies[policy], accel.parse(method))

    def checkpoints(self, policies: Iterable[str], methods: Sequence[str]) -> dict[str, dict[str, dict[str, str]]]:
        """Returns, for each policy and method, the SHA-256 of the files that they run on: weights, a draft.

        Raises:
            ValueError: There is no such policy or method, or a file of the method is missing.
        """
        from .. import accel
        from ..policies.checkpoint import CheckpointError, file_hash
        from ..policies.policy import policy_path

        hash_once = cache(file_hash)
        found: dict[str, dict[str, dict[str, str]]] = {}
        for policy, method in itertools.product(policies, methods):
            path = policy_path(policy)
            files = {policy: path}
            for part in accel.parse(method):
                for file in part.files(path):
                    if not file.is_file():
                        raise CheckpointError(
                            f"{part.name} needs {file}, and there is no such checkpoint; replan train-draft makes it"
                        )
                    files[f"{policy}{file.stem.removeprefix(path.stem)}"] = file
            found.setdefault(policy, {})[method] = {name: hash_once(file) for name, file in files.items()}
        return found

    def marks(self, policy: str) -> tuple[str, ...]:
        """Returns what a reader of the policy's results has to know, from its card."""
        return tuple(_header(policy).card.get("marks", ()))

    def trained_on(self, policy: str) -> tuple[str, ...] | None:
        """Returns the suites that the policy was trained on, from its card; None where the card does not say."""
        suites = _header(policy).card.get("suites")
        return None if suites is None else tuple(suites)

    def misfits(self, policy: str, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> list[str]:
        """Returns why a policy cannot act in an environment, a phrase each: a missing camera, other widths."""
        from ..policies.processor import Processor

        wants = Processor.from_plain(_header(policy).processor)
        offered: Mapping[str, Any] = getattr(observations, "spaces", {})
        cameras = [name for name, space in offered.items() if len(space.shape or ()) == 3]
        missing = [f"it has no camera {name!r}, but {cameras}" for name in wants.cameras if name not in cameras]
        widths = (
            ("state", offered["state"].shape if "state" in offered else None, (len(wants.state_mean),)),
            ("action", actions.shape, (len(wants.action_mean),)),
        )
        return missing + [f"its {what} is {has}, not {wanted}" for what, has, wanted in widths if has != wanted]

    def must_move(self, method: str) -> tuple[str, ...]:
        """Returns the counters that a method has to move, or it did nothing.

        Raises:
            ValueError: The method does not exist.
        """
        from .. import accel

        return tuple(counter for part in accel.parse(method) for counter in part.must_move)

    def routes(self, method: str) -> tuple[str, ...]:
        """Returns the routes that the rounds of a method may take.

        Raises:
            ValueError: The method does not exist.
        """
        from .. import accel

        return tuple(dict.fromkeys(route for part in accel.parse(method) for route in part.routes))

    def reschedules(self, method: str) -> tuple[str, ...]:
        """Returns the names of the method's parts that shorten the full route: those that claim the schedule.

        Raises:
            ValueError: The method does not exist.
        """
        from .. import accel
        from ..policies.seams import Seam

        return tuple(part.name for part in accel.parse(method) if Seam.SCHEDULE in part.claims)


def _header(policy: str) -> Header:
    from ..policies.checkpoint import read_header
    from ..policies.policy import policy_path

    return read_header(policy_path(policy))
