"""Policies of other kinds that packages offer: planners, in which no method acts."""

from __future__ import annotations

from ..policies.families import planner_policies, shipped_policies
from ..policies.planner import ALONE, PlannerAgent, PlannerPolicy
from ..policies.processing import incompatibilities
from ..results.schema import Mark
from . import source
from .registry import Files, MethodInfo, PolicyInfo
from .spec import BadInput

CODE = ("replan.policies.planner", "replan.eval.offered")


class OfferedPolicy:
    """Describes a planner and makes its agent; see :class:`~replan.eval.registry.Registry`.

    Args:
        name: Name of its entry point.
        policy: What the entry point offers.
    """

    def __init__(self, name: str, policy: PlannerPolicy) -> None:
        self._name, self._policy = name, policy

    def policy(self) -> PolicyInfo:
        """Describes the policy.

        Raises:
            BadInput: One of its files is missing.
        """
        policy = self._policy
        for file in policy.files:
            if not file.is_file():
                raise BadInput(f"policy {self._name!r} needs {str(file)!r}, and there is no such file")
        return PolicyInfo(
            files=Files({f"{self._name}: {file.name}": file for file in policy.files}),
            marks=tuple(map(Mark.parse, policy.marks)),
            trained_on=policy.suites,
            code=source.digest(source.named(*CODE) | source.imported(policy.make.__module__)),
            incompatibilities=lambda observations, actions: incompatibilities(
                observations, actions, policy.cameras, policy.state, policy.action
            ),
        )

    def method_of(self) -> str:
        """Returns the only method."""
        return ALONE

    def method(self, spec: str) -> MethodInfo:
        """Describes the only method of a planner.

        Raises:
            BadInput: It is another one.
        """
        if spec != ALONE:
            raise BadInput(f"method {spec!r} acts inside flow models, and policy {self._name!r} is none; leave it out")
        return MethodInfo(code=source.digest(source.named(*CODE)))

    def agent(self, method: str, dtype: str, device: str) -> PlannerAgent:
        """Makes the planner.

        Raises:
            BadInput: The method is none of a planner's.
        """
        self.method(method)
        return PlannerAgent(self._policy.make(dtype, device), device)


def offered_policy(name: str) -> OfferedPolicy | None:
    """Returns a policy by the name of its entry point; None if there is none, or a policy of ours has the name.

    Raises:
        BadInput: The package that offers it cannot be used.
    """
    offered, reasons = planner_policies()
    if name in shipped_policies():
        return None
    if name in reasons:
        raise BadInput(f"policy {name!r} cannot be used: {reasons[name]}")
    return OfferedPolicy(name, offered[name]) if name in offered else None
