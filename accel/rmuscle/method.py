"""rMuscle: both caches, with references from a library of executions."""

from __future__ import annotations

from pathlib import Path

from ...policies.model import Ops
from ...policies.policy import Policy
from ...policies.round import FULL, Call
from ...policies.seams import Method, Seam
from ..admission import Admitted
from ..library import Entry, Library, Pack, stacked
from ..retrieval import CACHED, FALLBACK, Limits, Retrieval
from .action_cache import SelectedNeurons
from .context_cache import SplicedRows, States, states
from .recording import entry_of

PRESETS = {"fast": (0.2, 0.25), "default": (0.4, 0.5), "slow": (0.6, 0.75)}
"""Shares of visual tokens and of neurons that are computed, as the paper has them."""


class RMuscle(Method):
    """Takes FFN work over from the round of an earlier execution that is most like the present one.

    Without a library, ``context_cache+action_cache`` is the paper's "w/o Cache Repo".

    Args:
        preset: ``fast``, ``default`` or ``slow``.
        tokens: Share of the visual tokens that the prefill computes, in place of the preset's. 1 is exactly dense.
        neurons: Share of the neurons that steps between anchors compute, in place of the preset's. 1 is exactly dense;
            others must be in the library.
        library: Folder of the library; empty for the one next to the policy.
        similarity: Below it the episode goes on densely.
        width: Episodes among which is searched (T).
        ahead: Rounds that are prepared ahead in each (L), and states that are compared.
        memory_mb: Memory for prepared references, in units of 10^6 bytes.
        rebuild_ms: Time that preparing a reference is taken to need. It is stated, not measured, so that an episode
            comes out the same on every machine; what takes longer is charged to the next round.
        admit: Most successful episodes that join the library while it is used; where there are too many, those leave
            that others cover. The method then learns across episodes. 0 is the library alone.

    Raises:
        ValueError: An option is out of range.
    """

    name = "rmuscle"
    claims = frozenset({Seam.PREFILL_FFN, Seam.STEP_FFN})
    routes = (FULL, CACHED, FALLBACK)
    activity_counters = ("ffn_rows_reused", "neurons_reused")
    limit = "tokens=1:neurons=1"
    papers = ("2609.19104",)

    def __init__(
        self,
        preset: str = "default",
        tokens: float | None = None,
        neurons: float | None = None,
        library: str = "",
        similarity: float = 0.8,
        width: int = 4,
        ahead: int = 4,
        memory_mb: int = 3000,
        rebuild_ms: float = 25.0,
        admit: int = 0,
    ) -> None:
        if admit < 0:
            raise ValueError(f"rmuscle admits 0 or more episodes, got {admit}")
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        limits = Limits(library, similarity, width, ahead, memory_mb, rebuild_ms)
        self._rows = SplicedRows(PRESETS[preset][0] if tokens is None else tokens, keeps=False)
        self._neurons = SelectedNeurons(PRESETS[preset][1] if neurons is None else neurons, scores=admit > 0)
        if self._rows.ratio < 1 or self._neurons.ratio < 1:  # a cache that is switched off cannot be active
            used = (self._rows.ratio < 1, self._neurons.ratio < 1)
            self.activity_counters = tuple(
                name for name, active in zip(RMuscle.activity_counters, used, strict=True) if active
            )
        self._limits, self.retrieval = limits, Retrieval(limits, self._states, _bytes, admit)
        self.ordered = admit > 0
        self.begin()

    def files(self, policy: Path) -> list[Path]:
        """The library's."""
        return self._limits.files(policy)

    def first_observations(self, policy: Path) -> frozenset[str]:
        """Those of the library's episodes."""
        return Library(self._limits.folder(policy)).first_observations

    def attach(self, policy: Policy) -> None:
        """Opens the library, and prepares how its episodes begin while the memory lasts.

        Raises:
            CheckpointError: There is none, it is damaged, or it was made with other weights.
            ValueError: It has no masks for this share of neurons.
        """
        self._model, library = policy.model, self.retrieval.open(policy)
        if self._neurons.ratio < 1 and self._neurons.ratio not in library.ratios:
            raise ValueError(
                f"the library has masks for the shares {', '.join(map(str, library.ratios))} of the neurons, not for "
                f"{self._neurons.ratio}; build one with --neurons {self._neurons.ratio}"
            )
        self._neurons.anchors = library.anchors
        self.retrieval.prepare_beginnings()

    def begin(self) -> None:
        """Forgets the last episode, and keeps how others begin."""
        self.retrieval.begin()
        self._rows.begin()
        self._neurons.begin()
        self._rounds: dict[str, list[Entry]] = {}  # of this episode, by instruction
        self._admitted = 0

    def end(self, success: bool) -> None:
        """Admits the episode, if it succeeded under one instruction."""
        if not self.ordered or not success or len(self._rounds) != 1:
            return
        ((instruction, rounds),) = self._rounds.items()
        if len({each.query.shape for each in rounds}) == 1:  # else a camera went missing on the way
            self._admitted = self.retrieval.admit(Admitted(instruction, stacked(rounds)))

    def look(self, call: Call) -> None:
        """Retrieves the round's reference.

        Raises:
            Stalled: The same one for the umpteenth time.
        """
        retrieval, self._neurons.masks = self.retrieval, None
        retrieval.look(call)
        self._rows.reference = retrieval.reference
        if retrieval.reference is not None and self._neurons.ratio < 1:
            pack, library = retrieval.pack(call.instruction), retrieval.library
            assert pack is not None
            masks = pack.masks(retrieval.row, library.ratios.index(self._neurons.ratio), library.neurons)
            self._neurons.masks = masks.to(call.noise.device).unbind()

    def idle(self, budget_ns: int) -> None:
        """Prepares candidates of the next round."""
        self.retrieval.idle(budget_ns)

    def prefill_ops(self) -> Ops:
        """The Context Cache."""
        return self._rows

    def step_ops(self) -> Ops:
        """The Action Cache."""
        return self._neurons

    def route(self, call: Call) -> str | None:
        """``cached`` with a reference, ``fallback`` in an episode that goes on densely, else ``full``."""
        return None if self.retrieval.route == FULL else self.retrieval.route

    def observe_full(self, call: Call) -> None:
        """Reports what was computed in this round."""
        self._rows.report(call)
        self._neurons.report(call)
        if self.ordered:
            library = self.retrieval.library
            entry = entry_of(call, self._neurons, library.ratios, library.neurons)
            self._rounds.setdefault(call.instruction, []).append(entry)

    def counters(self) -> dict[str, float]:
        """Rounds by route, prepared references, and what both caches took over."""
        counted = {**self._rows.counters(), **self._neurons.counters(), **self.retrieval.rounds}
        return {**counted, "admitted": self._admitted} if self.ordered else counted

    def _states(self, pack: Pack, row: int) -> States:
        return states(self._model, pack.inputs(row).to(self._model.device, self._model.dtype))


def _bytes(reference: States) -> int:
    return sum(tensor.nbytes for pair in reference for tensor in pair)
