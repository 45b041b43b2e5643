"""The seven seams of a policy call, and what a method that claims some of them looks like.

A method replaces what happens at the seams it claims and leaves the rest dense. Two methods compose exactly
when their claims are disjoint; :func:`compose` refuses any other pair and names the seam both want.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from .flow import FlowSpec, Schedule
    from .policy import Call, Policy, Proposal


class Seam(str, Enum):
    """A place in a policy call where a method may replace the dense arithmetic."""

    ROUND = "round"
    PREFILL_ROWS = "prefill_rows"
    PREFILL_FFN = "prefill_ffn"
    SCHEDULE = "schedule"
    STEP_FFN = "step_ffn"
    STEP_ROWS = "step_rows"
    BACKEND = "backend"


class Method:
    """An acceleration method. This base class claims nothing: it is the dense policy.

    A subclass sets the class attributes, and overrides the hook of each seam in ``claims``. Hooks at seams that it
    does not claim are never called.

    Attributes:
        name: What users write in ``--method``.
        claims: Seams whose arithmetic the method replaces.
        activity_counters: Counters each of which has to be above zero over a run; otherwise the method did nothing and
            its row is marked NOT ACTIVE.
        routes: Routes that its rounds may take.
        ordered: Whether it learns across episodes.
    """

    name: ClassVar[str] = "dense"
    claims: ClassVar[frozenset[Seam]] = frozenset()
    activity_counters: ClassVar[tuple[str, ...]] = ()
    routes: ClassVar[tuple[str, ...]] = ("full",)
    ordered: ClassVar[bool] = False

    @staticmethod
    def files(policy: Path) -> list[Path]:
        """Returns the files that the method needs beside those of the policy at this path, such as a draft."""
        return []

    def attach(self, policy: Policy) -> None:
        """Prepares whatever depends on the policy: tables, buffers, a draft. Called once."""

    def begin(self) -> None:
        """Forgets the last episode. Called before the first round of each."""

    def counters(self) -> dict[str, float]:
        """Returns what the method did since ``begin``, by name."""
        return {}

    def propose(self, call: Call) -> Proposal | None:
        """ROUND: a chunk that makes the full path unnecessary, or None to let the full path run."""
        raise NotImplementedError

    def schedule(self, flow: FlowSpec) -> Schedule:
        """SCHEDULE: the times at which the flow is integrated, and which of their predictions are computed."""
        raise NotImplementedError

    def observe_full(self, call: Call) -> None:
        """Tap: the full path of this call has run; ``call.context`` and ``call.chunk`` are set."""


def compose(methods: Iterable[Method]) -> dict[Seam, Method]:
    """Returns the method that owns each claimed seam.

    Raises:
        ValueError: Two methods claim the same seam.
    """
    owner: dict[Seam, Method] = {}
    for method in methods:
        for seam in sorted(method.claims):
            if seam in owner:
                raise ValueError(
                    f"{owner[seam].name!r} and {method.name!r} cannot be combined: both replace the {seam.value!r} seam"
                )
            owner[seam] = method
    return owner
