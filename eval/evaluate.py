"""The composition root: from a specification and a registry to a finished run directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..results.schema import Run, machine_digest
from ..results.store import Store
from . import provenance
from .cells import Actor, Cell, Job, make_cells, make_jobs
from .clock import check_routes, parse_latency
from .describe import Described, describe
from .rows import Host
from .runner import run
from .spec import BadInput, Spec
from .workers import local_workers

if TYPE_CHECKING:
    from .registry import MethodInfo, PolicyInfo, Registry

MOST_ROUTES = 16  # of a method with all its parts: each is warmed up by itself, and has a line on the board


class Plan(NamedTuple):
    """An evaluation, checked and ready to run: the arguments of :func:`.runner.run`.

    Attributes:
        spec: The specification, its device resolved.
        jobs: One per cell and method.
        record: What produces the run.
        host: This machine.
    """

    spec: Spec
    jobs: list[Job]
    record: Run
    host: Host


class Tally(NamedTuple):
    """How many episodes a run directory holds, and how many the harness could not measure."""

    episodes: int
    errors: int


def evaluate(spec: Spec, registry: Registry, *, command: str, started: str, progress: bool = True) -> Tally:
    """Runs an evaluation, or resumes it.

    Args:
        spec: The evaluation; ``spec.out`` is the run directory.
        registry: Where suites, policies and methods come from.
        command: Command line, for the record.
        started: ISO 8601 time, for the record.
        progress: Whether to say on stderr how it goes; faults are said in any case.

    Raises:
        BadInput: Something in the specification does not exist or does not fit.
        SuiteUnavailable: A suite lacks something.
        StoreError: The run directory holds another run, or cannot be written.
    """
    with local_workers(registry, spec.workers) as workers:
        plan = make_plan(spec, registry, workers[0].describe(spec), command=command, started=started)
        run(*plan, registry, workers, progress=progress)
    with Store.open(spec.out) as store:
        measured = len(store.done_keys() & {job.key for job in plan.jobs})
    return Tally(measured, len(plan.jobs) - measured)


def make_plan(
    spec: Spec,
    registry: Registry,
    described: Described | None = None,
    *,
    command: str,
    started: str,
    cells: list[Cell] | None = None,
) -> Plan:
    """Checks what can be checked without an environment, and returns what is to be run. Nothing is written.

    Args:
        spec: The evaluation.
        registry: Where suites, policies and methods come from.
        described: What :func:`.describe.describe` says of them in another process; asked here if missing.
        command: Command line, for the record.
        started: ISO 8601 time, for the record.
        cells: The cells; those of the specification if missing.

    Raises:
        BadInput: Something in the specification does not exist or does not fit.
        SuiteUnavailable: A suite lacks something.
    """
    policies, methods, accelerator = described or describe(spec, registry)
    hardware = provenance.hardware(accelerator)
    spec = replace(spec, device=resolved_device(spec.device, accelerator))
    suites, latency = registry.suites(), parse_latency(spec.latency)
    routes = {method: info.routes for (_, method), info in methods.items()}
    for method, declared in routes.items():
        if len(declared) > MOST_ROUTES:
            raise BadInput(
                f"method {method!r} declares {len(declared)} routes; name at most {MOST_ROUTES} kinds of round"
            )
    check_routes(latency, routes)
    actors = {(policy, method): _actor(policies[policy], info) for (policy, method), info in methods.items()}
    suite_code = {name: registry.suite_code(suites[name]) for name in spec.suite}
    ordered = {method for (_, method), info in methods.items() if info.ordered}
    if ordered and spec.workers > 1:
        raise BadInput(
            f"method {min(ordered)!r} learns across episodes, so one worker plays them in order; "
            f"write --workers 1, not {spec.workers}"
        )
    jobs = make_jobs(spec, cells or make_cells(spec, suites), actors, latency.identity(), suite_code)
    record = provenance.make_run(
        spec, suites, policies, methods, actors, suite_code, latency, hardware, command=command, started=started
    )
    device = "cpu" if spec.device == "cpu" else accelerator
    return Plan(spec, jobs, record, Host(machine_digest(hardware), device))


def _actor(policy: PolicyInfo, method: MethodInfo) -> Actor:
    return Actor(
        weights=policy.files.digest,
        files=method.files.digests,
        code={"policy": policy.code, "method": method.code},
        ordered=method.ordered,
    )


def resolved_device(device: str, accelerator: str) -> str:
    """Returns ``cpu`` or ``cuda`` for what a user wrote.

    Args:
        device: One of :data:`.spec.DEVICES`.
        accelerator: What :func:`.provenance.accelerator` says of this machine's.

    Raises:
        BadInput: There is no such device.
    """
    has_cuda = accelerator != provenance.NO_ACCELERATOR
    if device == "cuda" and not has_cuda:
        raise BadInput("device 'cuda' is not available on this machine; write --device cpu")
    return device if device != "auto" else "cuda" if has_cuda else "cpu"
