"""Where an evaluation finds its suites, policies and methods: the one place that joins the other packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from ..envs import Suite
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

    def checkpoints(self, policy: str, methods: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns, for each method, the SHA-256 of the files it runs on: the policy's and its own, such as a draft.

        Raises:
            ValueError: There is no such policy or method, or a file of the method is missing.
        """
        from .. import accel
        from ..policies.checkpoint import CheckpointError, file_hash
        from ..policies.policy import policy_path

        path, hash_once = policy_path(policy), cache(file_hash)
        found = {}
        for method in methods:
            files = {policy: path}
            for part in accel.parse(method):
                for file in part.files(path):
                    if not file.is_file():
                        raise CheckpointError(
                            f"{part.name} needs {file}, and there is no such checkpoint; replan train-draft makes it"
                        )
                    files[f"{policy}{file.stem.removeprefix(path.stem)}"] = file
            found[method] = {name: hash_once(file) for name, file in files.items()}
        return found

    def marks(self, policy: str) -> tuple[str, ...]:
        """Returns what a reader of the policy's results has to know, from its card."""
        from ..policies.checkpoint import read_header
        from ..policies.policy import policy_path

        return tuple(read_header(policy_path(policy)).card.get("marks", ()))

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
