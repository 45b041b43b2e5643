"""Provenance of a run: code, packages, machine, weights."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.addresses import files_digest
from ..results.schema import Mark, Run, RunIdentity, machine_digest
from .cells import Actors, combinations
from .claims import shared_cores
from .clock import Profile
from .whatif import Resampled, WhatIf

if TYPE_CHECKING:
    from ..envs import Suite
    from .clock import LatencySource
    from .registry import MethodInfo, PolicyInfo
    from .spec import Spec

PACKAGES = ("replan", "gymnasium", "numpy", "torch", "triton")  # that can change a result of any suite
# Fields of a specification that cannot change what an episode is, and names whose meaning is in the run's identity.
FREE_ON_RESUME = ("out", "timeout", "workers", "keep_actions", "policy", "latency")
WHAT_IF = "what-if latency"
NO_ACCELERATOR = "CPU"  # what accelerator() says of a machine without one


def make_run(
    spec: Spec,
    suites: Mapping[str, Suite],
    policies: Mapping[str, PolicyInfo],
    methods: Mapping[tuple[str, str], MethodInfo],
    actors: Actors,
    suite_code: Mapping[str, str],
    latency: LatencySource,
    machine: Mapping[str, str],
    *,
    command: str,
    started: str,
) -> Run:
    """Returns the record of a run.

    Args:
        spec: The evaluation, its device resolved.
        suites: The suites, by name.
        policies: Its policies, by name.
        methods: Its methods, by policy and method.
        actors: The policies with the methods, by content.
        suite_code: Digests of the source code of the suites, by name.
        latency: The latency source that the specification names.
        machine: What :func:`hardware` says of this machine.
        command: Command line.
        started: ISO 8601 time.

    Raises:
        SuiteUnavailable: A suite lacks something.
    """
    plain = {name: value for name, value in spec.as_plain().items() if name not in FREE_ON_RESUME}
    fingerprints = {name: _fingerprint(suites[name], spec) for name in spec.suite}
    revision = commit()
    return Run(
        spec=plain,
        identity=RunIdentity(
            latency=latency.identity(),
            fingerprints={name: {**parts, "code": suite_code[name]} for name, parts in fingerprints.items()},
            files={name: _files(spec.policy[name], actors) for name in spec.suite},
        ),
        activity_counters={method: info.activity_counters for (_, method), info in methods.items()},
        command=command,
        started=started,
        commit=revision,
        packages=packages(),
        machines={machine_digest(machine): dict(machine)},
        checkpoints={
            name: digest
            for files in (*(policy.files for policy in policies.values()), *(info.files for info in methods.values()))
            for name, digest in files.sha256.items()
        },
        marks=tuple(_marks(spec, methods.values(), latency, revision)),
        suite_marks={name: tuple(_suite_marks(suites[name], spec, policies)) for name in spec.suite},
        families={name: policy.family for name, policy in policies.items() if policy.family},
    )


def _marks(spec: Spec, methods: Iterable[MethodInfo], latency: LatencySource, revision: str) -> Iterator[Mark]:
    """Yields what a reader of every row of the run must know."""
    if spec.device == "cpu":
        yield Mark("CPU", "CPU")
    if revision.endswith("-dirty"):
        yield Mark("uncommitted changes", "uncommitted changes")
    if isinstance(latency, Profile):
        for name in dict.fromkeys(name for method in methods for name in method.reschedules):
            text = f"the latency profile {latency.name} charges {name} a whole full round"
            yield Mark(f"{name} charged in full", text)
    if isinstance(latency, (WhatIf, Resampled)):
        yield Mark(WHAT_IF, f"latencies are {spec.latency}; they were not measured in these episodes")
    cores = shared_cores(spec.workers)
    if cores is not None:
        yield Mark(f"{spec.workers} workers on {cores} cores", "latency was not measured alone")
    elif spec.workers > 1 and spec.device != "cpu":
        yield Mark(f"{spec.workers} workers on one accelerator", "latency was not measured alone")


def _files(policy: str, actors: Actors) -> dict[str, str]:
    """Returns a digest of the files of a policy with each method, by method."""
    return {
        method: files_digest(actor.weights, actor.files) for (name, method), actor in actors.items() if name == policy
    }


def _fingerprint(suite: Suite, spec: Spec) -> dict[str, str]:
    """Returns versions and digests of what the suite is made of, by name; of all settings where they differ."""
    values: dict[str, dict[str, None]] = {}
    for settings in combinations(spec):
        for name, value in (suite.fingerprint(settings) if suite.fingerprint else {}).items():
            values.setdefault(name, {})[value] = None
    return {name: " and ".join(different) for name, different in values.items()}


def _suite_marks(suite: Suite, spec: Spec, policies: Mapping[str, PolicyInfo]) -> Iterator[Mark]:
    """Yields the marks of the suite and of its policy's card, and one if the policy was trained on other suites."""
    name = spec.policy[suite.name]
    policy = policies[name]
    yield from map(Mark.parse, suite.marks)
    yield from policy.marks
    if policy.trained_on is not None and suite.name not in policy.trained_on:
        trained_on = ", ".join(policy.trained_on)
        yield Mark("untrained suite", f"{name} was trained on {trained_on}, not on {suite.name}")


def commit() -> str:
    """Returns the Git commit of this code, with ``-dirty`` where files differ; ``unknown`` outside a checkout."""
    here = Path(__file__)
    try:
        # An installed copy may be inside the checkout of another project, so Git must track this very file.
        _git("ls-files", "--error-unmatch", here.name)
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


def packages() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that can change a result."""
    from ..envs import INSTALLS

    versions = {"python": platform.python_version()}
    for name in sorted({*PACKAGES, *(name for install in INSTALLS.values() for name in install.packages)}):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def accelerator() -> str:
    """Returns the name of the CUDA device, or :data:`NO_ACCELERATOR`. Imports torch."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else NO_ACCELERATOR


def hardware(accelerator: str) -> dict[str, str]:
    """Returns what can change a result of this machine, in words: processor, accelerator, renderer and so on.

    Args:
        accelerator: What :func:`accelerator` says.
    """
    from ..envs import opengl

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": accelerator,
        "renderer": opengl.renderer(),
    }


def processor() -> str:
    """Returns the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
