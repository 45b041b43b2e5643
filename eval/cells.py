"""Cells: the episodes of an evaluation, each with an address made of its content.

A cell says what the environment does: suite, task, initial state, seed, settings. It does not say who acts, so every
method gets the same cells, and two episodes with the same cell address may be compared. A job adds who acts, and on
which clock; two episodes with the same job address are the same measurement, so a resumed run skips those that the
store holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..results.addresses import address, cell_address, in_chain, measurement
from .spec import BadInput

if TYPE_CHECKING:
    from ..envs import Suite
    from .spec import Spec


@dataclass(frozen=True)
class Cell:
    """One episode of an environment, whatever acts in it.

    Attributes:
        suite: Suite name.
        task: Task name inside the suite.
        init_state: Index of the initial state.
        seed: Seed given to the environment's reset.
        settings: Suite settings that the user fixed.
    """

    suite: str
    task: str
    init_state: int
    seed: int
    settings: dict[str, Any]

    @cached_property
    def key(self) -> str:
        """Content address of the cell."""
        return cell_address(self.suite, self.task, self.init_state, self.seed, self.settings)

    @property
    def noise_seed(self) -> int:
        """Seed of the policy's noise: the same for every method, different in every cell."""
        return int(self.key[:12], 16)


@dataclass(frozen=True)
class Actor:
    """What acts in a cell: a policy with a method.

    Attributes:
        weights: Digest of the policy's files.
        files: Digests of the method's own files, in a fixed order.
        code: Digests of the source code of ``policy`` and ``method``.
        ordered: Whether the method learns across episodes.
    """

    weights: str
    files: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = False


Actors = Mapping[tuple[str, str], Actor]
"""By (policy, method) as the user wrote them."""


@dataclass(frozen=True)
class Job:
    """One cell given to one method.

    Attributes:
        cell: The cell.
        policy: Policy as the user wrote it, or the suite's own.
        method: Method as the user wrote it.
        key: Content address of the measurement.
        weights: Digest of the policy's files.
        code: Digests of the source code of ``suite``, ``policy`` and ``method``.
        files: Digests of the method's own files, in a fixed order.
        latency: Address of what identifies the latency source.
        place: Position in the chain of a method that learns across episodes; None for every other method.
    """

    cell: Cell
    policy: str
    method: str
    key: str
    weights: str = ""
    code: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    latency: str = ""
    place: int | None = None


def combinations(spec: Spec) -> list[dict[str, Any]]:
    """Returns every combination of the settings."""
    return [dict(zip(spec.set, values, strict=True)) for values in itertools.product(*spec.set.values())]


def make_cells(spec: Spec, suites: Mapping[str, Suite]) -> list[Cell]:
    """Returns the cells of a specification, ordered so that any first part of them is balanced.

    Suites come one after another; in each, tasks alternate, and so do combinations of settings. A suite with fewer
    initial states than episodes uses each again with the next seed.

    Raises:
        BadInput: One of the suites has none of the requested tasks.
    """
    tasks = {name: [t for t in suites[name].tasks if not spec.task or t in spec.task] for name in spec.suite}
    for name, selected in tasks.items():
        if not selected:
            raise BadInput(f"suite {name!r} has none of the tasks {', '.join(spec.task)}")
    cells = []
    for name, episode, settings in itertools.product(spec.suite, range(spec.episodes), combinations(spec)):
        turn, which = divmod(episode, len(tasks[name]))
        again, state = divmod(turn, suites[name].init_states or spec.episodes)
        cells.append(Cell(name, tasks[name][which], state, spec.seed + again, settings))
    return cells


def make_jobs(
    spec: Spec, cells: list[Cell], actors: Actors, latency: Any, suite_code: Mapping[str, str] | None = None
) -> list[Job]:
    """Returns every cell for every method, the methods of a cell side by side.

    Speed is compared between things that were measured alternately. The first method changes from cell to cell, so that
    no method always gets the same worker.

    Args:
        spec: The specification, its device resolved.
        cells: Its cells.
        actors: What acts in them. What a method that learns across episodes does in a cell depends on its episodes so
            far, so the key of each contains the key of the one before it.
        latency: What identifies the latency source, as JSON values.
        suite_code: Digests of the source code of the suites, by name.
    """
    chains: dict[tuple[str, str], list[str]] = {}
    jobs, durations = [], address(latency)
    for turn, cell in enumerate(cells):
        first, policy = turn % len(spec.method), spec.policy[cell.suite]
        for method in spec.method[first:] + spec.method[:first]:
            actor = actors[policy, method]
            code = {"suite": (suite_code or {}).get(cell.suite, ""), **actor.code}
            what = (method, code, spec.clock, latency, spec.dtype, spec.device)
            content = measurement(cell.key, actor.weights, actor.files, *what)
            place = None
            if actor.ordered:
                chain = chains.setdefault((cell.suite, method), [])
                place = len(chain)
                content = in_chain(content, chain[-1] if chain else None)
                chain.append(address(content))
            who = (actor.weights, code, actor.files, durations)
            jobs.append(Job(cell, policy, method, address(content), *who, place))
    return jobs


def make_chains(jobs: Iterable[Job]) -> list[list[Job]]:
    """Returns the jobs of each method that learns across episodes, suite by suite, in the order in which it learns."""
    chains: dict[tuple[str, str], list[Job]] = {}
    for job in sorted((job for job in jobs if job.place is not None), key=lambda job: job.place or 0):
        chains.setdefault((job.cell.suite, job.method), []).append(job)
    return list(chains.values())


def make_batches(jobs: Iterable[Job], suites: Mapping[str, Suite]) -> list[list[Job]]:
    """Gathers jobs that one worker should run in a row: all methods of a cell, and the cells of a block.

    A block is some initial states of one task, where the suite says that another task is expensive. Batches are in the
    order of their first jobs, so the first part of them is as balanced as that of the jobs, to within a block.

    Args:
        jobs: Jobs of :func:`make_jobs`, none of them in a chain.
        suites: The suites, by name.
    """
    batches: dict[Any, list[Job]] = {}
    for job in jobs:
        cell = job.cell
        block = cell.init_state // suites[cell.suite].block
        batches.setdefault((cell.suite, address(cell.settings), cell.task, cell.seed, block), []).append(job)
    return list(batches.values())
