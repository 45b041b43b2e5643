"""What a plan has to know of policies, methods and the accelerator: plain values, which pass between processes.

Asking imports torch and the code of the policies. So the first worker is asked: it needs them anyway, and the process
that plans does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from . import provenance
from .registry import Files, MethodInfo, PolicyInfo
from .spec import BadInput

if TYPE_CHECKING:
    from ..envs import Suite
    from .registry import Registry
    from .spec import Spec


class Described(NamedTuple):
    """What a specification names.

    Attributes:
        policies: Its policies, by name; whether they fit a suite is not in it.
        methods: Its methods, by policy and method.
        accelerator: Name of this machine's, see :func:`.provenance.accelerator`.
    """

    policies: Mapping[str, PolicyInfo]
    methods: Mapping[tuple[str, str], MethodInfo]
    accelerator: str


def describe(spec: Spec, registry: Registry) -> Described:
    """Describes what a specification names, its files read.

    Raises:
        ValueError: There is no such policy or method, or a policy cannot read the instruction of a task.
    """
    policies = {name: registry.policy(name) for name in spec.policy.values()}
    for suite, policy in spec.policy.items():
        _require_readable(registry.suites()[suite], spec.task, policy, policies[policy])
    methods = {(policy, method): registry.method(method, policy) for policy in policies for method in spec.method}
    return Described(
        {
            name: replace(
                info,
                files=_read(info.files),
                incompatibilities=PolicyInfo.incompatibilities,
                unreadable=PolicyInfo.unreadable,
            )
            for name, info in policies.items()
        },
        {both: replace(info, files=_read(info.files)) for both, info in methods.items()},
        provenance.accelerator(),
    )


def _require_readable(suite: Suite, tasks: tuple[str, ...], policy: str, info: PolicyInfo) -> None:
    chosen = [task for task in suite.tasks if task in suite.instructions and (not tasks or task in tasks)]
    reasons = {task: reason for task in chosen if (reason := info.unreadable(suite.instructions[task]))}
    if reasons:
        task, reason = next(iter(reasons.items()))
        more = f" and of {len(reasons) - 1} more" * (len(reasons) > 1)
        raise BadInput(
            f"policy {policy!r} cannot read the instruction of task {task!r}{more} in suite {suite.name!r}: {reason}; "
            "name another --policy, or the tasks that it knows with --task"
        )


def _read(files: Files) -> Files:
    return Files(known=files.sha256)
