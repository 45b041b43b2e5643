"""The registry: where an evaluation finds its suites, policies and methods.

It is the only file of the evaluation that calls into ``policies`` and ``accel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..files import joined
from ..results.schema import Mark
from . import source
from .spec import BadInput

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from ..accel.catalogue import Entry
    from ..envs import Suite
    from ..policies.policy import Policy
    from ..policies.seams import Method
    from ..policies.snapshot import Snapshot
    from .offered import OfferedPolicy
    from .remote.client import RemotePolicy

    Space = gymnasium.Space[Any]


# What an episode is, besides its suite. Not what these import: how an episode is requested or stored decides nothing.
EPISODE = tuple(
    f"replan.{name}"
    for name in (
        "envs.realtime",
        "eval.cells",
        "eval.clock",
        "eval.rows",
        "eval.whatif",
        "eval.worker",
        "policies.snapshot",
        "results.addresses",
    )
)
AGENT = ("replan.policies.agent", "replan.policies.policy")


class Unreachable(BadInput):
    """A policy on a server cannot be asked: nothing is measured, and nobody's failure is recorded."""


class Round(Protocol):
    """The result of a round, as the harness records it. Times are integer nanoseconds."""

    @property
    def route(self) -> str:
        """Path that the round took."""
        ...

    @property
    def window(self) -> int:
        """Replan window, in actions."""
        ...

    @property
    def accepted(self) -> int | None:
        """Leading draft positions that passed verification; None where nothing was drafted."""
        ...

    @property
    def drafted(self) -> int | None:
        """Draft positions that were verified; None where nothing was drafted."""
        ...

    @property
    def host_ns(self) -> int:
        """Wall time from observation to actions."""
        ...

    @property
    def cpu_ns(self) -> int:
        """Processor time in the same span."""
        ...

    @property
    def stages_ns(self) -> Mapping[str, int]:
        """Wall time of each stage."""
        ...

    @property
    def extra(self) -> Mapping[str, float]:
        """Further numbers that the method reports."""
        ...


class Agent(Protocol):
    """What the worker asks of a policy with its methods."""

    @property
    def round(self) -> Round | None:
        """The round that the last ``act`` made, or None where it returned an action that was already planned."""
        ...

    @property
    def needs_observation(self) -> bool:
        """Whether the next ``act`` makes a round, and so reads the observation."""
        ...

    def reset(self, seed: int) -> None:
        """Begins an episode; everything random in it comes from the seed."""
        ...

    def act(self, observation: Any) -> np.ndarray:
        """Returns the next action, float32 [A], in the environment's own convention."""
        ...

    def idle(self, budget_ns: int) -> None:
        """Gives time in which the robot moves and the accelerator is free.

        What is done in it counts in no round, but for what takes longer than all that was given since the last round:
        the next round is charged with that.

        Args:
            budget_ns: Nanoseconds of simulated time that the last control step took.
        """
        ...

    def end(self, success: bool) -> None:
        """Ends the episode, after its last step."""
        ...

    def counters(self) -> dict[str, float]:
        """Returns what the method did since ``reset``, by name."""
        ...

    def dense_error(self) -> float:
        """Returns the distance of the last round's actions to the dense policy's under the same noise."""
        ...


@dataclass(frozen=True)
class Files:
    """Files that a policy or a method needs, hashed when their content is first asked for.

    Attributes:
        paths: Paths by the name that results use.
        known: SHA-256 (hex) by name of what is known without a file: it was read elsewhere, or a server says it.
    """

    paths: Mapping[str, Path] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> dict[str, str]:
        """SHA-256 (hex) by the same names."""
        return {**self.known, **{name: _file_digest(path) for name, path in self.paths.items()}}

    @property
    def digests(self) -> tuple[str, ...]:
        """The contents without their names, in a fixed order: a copy elsewhere is the same."""
        return tuple(sorted(self.sha256.values()))

    @property
    def digest(self) -> str:
        """One digest of all contents: what rows call a policy's weights. Empty where there are no files."""
        return joined(self.digests)


def _file_digest(path: Path) -> str:
    status = path.stat()  # a file that is copied here may bring the time of its last write along, and no other
    return _sha256(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@cache
def _sha256(path: Path, version: tuple[int, ...]) -> str:
    """Returns a file's digest; several methods of an evaluation share files of several GB, so it is read once."""
    from ..policies.checkpoint import file_hash

    return file_hash(path)


def _fits_all(observation_space: Space, action_space: Space) -> list[str]:
    return []


def _reads_all(instruction: str) -> str | None:
    return None


@dataclass(frozen=True)
class PolicyInfo:
    """A policy, without its weights in memory.

    Attributes:
        files: Its checkpoint.
        marks: Marks of every row of the policy, from its card.
        trained_on: Suites that it was trained on, from its card; None where the card does not say.
        family: Kind of its family; empty for what is no flow model, or runs elsewhere.
        code: Digest of the source code of its family and of the agent.
        incompatibilities: Returns why it cannot act in an environment with an observation and an action space, one
            phrase each: a missing camera, another width. Nothing where it can.
        unreadable: Returns why it cannot read an instruction, such as a word that it does not know; None where it can.
    """

    files: Files = field(default_factory=Files)
    marks: tuple[Mark, ...] = ()
    trained_on: tuple[str, ...] | None = None
    family: str = ""
    code: str = ""
    incompatibilities: Callable[[Space, Space], list[str]] = _fits_all
    unreadable: Callable[[str], str | None] = _reads_all


@dataclass(frozen=True)
class MethodInfo:
    """A method as the user wrote it, with the policy that it is to run on.

    Attributes:
        files: Files that it needs besides the policy's, such as a draft.
        activity_counters: Counters that prove that it acted: one that stays at zero makes the row ``NOT ACTIVE``.
        routes: Routes that its rounds may take.
        reschedules: Names of its parts that change what the full route costs.
        ordered: Whether it learns across episodes: they are played in a fixed order by one process.
        code: Digest of its source code, less what belongs to the policy's.
        first_observations: Digests of the first observations of episodes that it was made from: none is measured.
    """

    files: Files = field(default_factory=Files)
    activity_counters: tuple[str, ...] = ()
    routes: tuple[str, ...] = ("full",)
    reschedules: tuple[str, ...] = ()
    ordered: bool = False
    code: str = ""
    first_observations: frozenset[str] = frozenset()


class Registry:
    """The suites, policies and methods of this package.

    A worker process gets a pickled copy and builds its own environments and agents with it. Tests, and who evaluates an
    agent of another kind, pass a subclass.
    """

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}  # one copy of the weights per process, whatever the number of methods
        self._paths: dict[str, Path] = {}  # of each policy that was recognised, which takes a published folder seconds
        self._snapshots: dict[str, Snapshot] = {}  # of each when it was loaded

    def suites(self) -> Mapping[str, Suite]:
        """Returns the suites by name."""
        from ..envs import SUITES

        return SUITES

    def suite_code(self, suite: Suite) -> str:
        """Returns the digest of the source code that decides an episode of a suite."""
        module = suite.entry_point.partition(":")[0]
        return source.digest(source.imported(module) | source.folder(module) | source.named(*EPISODE))

    def environment(self, suite: Suite, settings: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
        """Builds the environment of a suite.

        Raises:
            ValueError: The environment refuses a setting.
            SuiteUnavailable: Something that the suite needs is not installed.
        """
        import gymnasium

        from .. import envs  # noqa: F401  # registers the environments

        return gymnasium.make(suite.env_id, disable_env_checker=True, **settings)

    def policy(self, name: str) -> PolicyInfo:
        """Describes a policy: by name or path (:func:`replan.policies.policy.open_policy`), or by a server's address.

        Raises:
            ValueError: There is no such policy.
        """
        from ..policies.policy import open_policy

        if other := self._other(name):
            return other.policy()
        stored = open_policy(name)
        self._paths[name] = stored.path
        suites = stored.card.get("suites")
        kinds = type(stored.config), stored.family.model, type(stored.processor)
        return PolicyInfo(
            files=Files({name if len(stored.files) == 1 else f"{name}: {file}": file for file in stored.files}),
            marks=tuple(map(Mark.parse, stored.card.get("marks", ()))),
            trained_on=None if suites is None else tuple(suites),
            family=stored.family.kind,
            code=source.digest(source.imported(*AGENT, *_modules(*kinds))),
            incompatibilities=stored.processor.incompatibilities,
            unreadable=getattr(stored.processor, "unreadable", _reads_all),  # other authors' may lack it
        )

    def methods(self) -> tuple[list[Entry], dict[str, str]]:
        """Returns what there is to say about every method, and why others cannot be used, by name."""
        from .. import accel

        return accel.every_method()

    def method(self, spec: str, policy: str) -> MethodInfo:
        """Describes a method, such as ``flash:delta=0.1+dp_cache``, on a policy.

        Raises:
            ValueError: There is no such method or policy.
            BadInput: A file that the method needs for this policy is missing.
        """
        from ..policies.seams import Methods, Seam, naming, needed_files

        if other := self._other(policy):
            return other.method(spec)
        if policy not in self._paths:
            self.policy(policy)
        path, parts, paths = self._paths[policy], _parts(spec), {}
        other_routes = {Seam.ROUND, Seam.WINDOW, Seam.CONTEXT, Seam.PREDICTION}  # they leave the full one as it is
        for part in parts:
            for file in needed_files(part, path):
                if not file.exists():
                    raise BadInput(
                        f"method {spec!r} needs {str(file)!r} for policy {policy!r}, and there is no such file; "
                        f"docs/methods.md says how to make what {part.name!r} needs"
                    )
                paths[_file_name(policy, path, file)] = file
        with naming(f"the files of {spec!r} cannot be read"):
            firsts = frozenset[str]().union(*(part.first_observations(path) for part in parts))
        return MethodInfo(
            files=Files(paths),
            activity_counters=tuple(counter for part in parts for counter in part.activity_counters),
            routes=Methods(parts).routes,
            reschedules=tuple(part.name for part in parts if part.claims - other_routes),
            ordered=any(part.ordered for part in parts),
            code=source.digest(source.imported(*_modules(*map(type, parts))) - source.imported(*AGENT)),
            first_observations=firsts,
        )

    def method_of(self, policy: str) -> str:
        """Returns the method that a policy runs with where the user names none: that of its server, or none.

        Raises:
            ValueError: There is no such policy.
        """
        from ..policies.seams import Method

        other = self._other(policy)
        return other.method_of() if other else Method.name

    def code(self, suite: str, policy: str, method: str) -> dict[str, str]:
        """Returns digests of the source code that decides an episode: of ``suite``, ``policy`` and ``method``.

        Raises:
            ValueError: There is no such method or policy.
        """
        return {
            "suite": self.suite_code(self.suites()[suite]),
            "policy": self.policy(policy).code,
            "method": self.method(method, policy).code,
        }

    def agent(self, policy: str, method: str, dtype: str, device: str) -> Agent:
        """Loads a policy and gives it a method.

        Args:
            policy: Name or path, as for ``policy``.
            method: Method as the user wrote it.
            dtype: ``float32`` or ``bfloat16``.
            device: ``cpu`` or ``cuda``.

        Raises:
            ValueError: The method does not exist or does not fit the policy, or the checkpoint cannot be used.
            Unreachable: The policy is on a server that does not answer.
        """
        import torch

        from .. import accel
        from ..policies.agent import ChunkAgent
        from ..policies.policy import load_policy
        from ..policies.snapshot import snapshot

        torch.set_num_threads(1)  # more would make workers wait for each other, and change sums
        if other := self._other(policy):
            return other.agent(method, dtype, device)
        if policy not in self._policies:
            self._policies[policy] = load_policy(policy, dtype=getattr(torch, dtype), device=device)
            self._snapshots[policy] = snapshot(self._policies[policy])
        return ChunkAgent(self._policies[policy], accel.parse(method))

    def altered(self) -> list[str]:
        """Returns what of the loaded policies, which all agents of a process share, is not as it was loaded."""
        from ..policies.snapshot import changes, snapshot

        loaded = [(self._snapshots[name], policy) for name, policy in self._policies.items()]
        return [change for before, policy in loaded for change in changes(before, snapshot(policy))]

    def _other(self, name: str) -> RemotePolicy | OfferedPolicy | None:
        """Returns a policy that is no checkpoint: on a server, or another package's own kind; None for all others."""
        from .offered import offered_policy
        from .remote.client import SCHEMES, RemotePolicy

        return RemotePolicy(name) if name.startswith(SCHEMES) else offered_policy(name)


def _modules(*kinds: type) -> list[str]:
    return [kind.__module__ for kind in kinds]


def _file_name(policy: str, path: Path, file: Path) -> str:
    """Returns the name in results of a method's file: unique, and never that of the policy's own file.

    Args:
        policy: The policy as the user wrote it.
        path: Its checkpoint.
        file: A file that the method needs.
    """
    next_to_it = file.parent == path.parent and file.suffix == path.suffix and file.stem.startswith(f"{path.stem}.")
    return f"{policy}{file.stem.removeprefix(path.stem)}" if next_to_it else f"{policy}: {file}"


@cache
def _parts(spec: str) -> tuple[Method, ...]:
    """The methods that a specification names, for description only: an agent attaches new ones."""
    from .. import accel

    return tuple(accel.parse(spec))
