"""rMuscle: both caches, with references from a library of executions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from ...policies.model import Ops
from ...policies.policy import Policy
from ...policies.round import FULL, Call
from ...policies.seams import Method, Seam
from ..library import INDEX, Library, Pack, library_path, query_of
from .action_cache import SelectedNeurons
from .context_cache import SplicedRows, States, states
from .window import Window

CACHED, FALLBACK = "cached", "fallback"

PRESETS = {"fast": (0.2, 0.25), "default": (0.4, 0.5), "slow": (0.6, 0.75)}
"""Shares of visual tokens and of neurons that are computed, as the paper has them."""


class Stalled(RuntimeError):
    """The robot does not get on: one reference was retrieved more often than any episode of the task has rounds."""


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
    ) -> None:
        if preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        if not -1 <= similarity <= 1 or width < 1 or ahead < 1:
            raise ValueError(
                f"similarity must be from -1 to 1, width and ahead at least 1, got {similarity}, {width} and {ahead}"
            )
        if not memory_mb >= 0 or not rebuild_ms >= 0:
            raise ValueError(f"memory_mb and rebuild_ms must be at least 0, got {memory_mb} and {rebuild_ms}")
        self._rows = SplicedRows(PRESETS[preset][0] if tokens is None else tokens, keeps=False)
        self._neurons = SelectedNeurons(PRESETS[preset][1] if neurons is None else neurons, scores=False)
        if self._rows.ratio < 1 or self._neurons.ratio < 1:  # a cache that is switched off cannot be active
            used = (self._rows.ratio < 1, self._neurons.ratio < 1)
            self.activity_counters = tuple(
                name for name, active in zip(RMuscle.activity_counters, used, strict=True) if active
            )
        self._folder = Path(library) if library else None
        self._window_options = (width, ahead, similarity)
        self._memory, self._rebuild_ns = memory_mb * 1_000_000, int(rebuild_ms * 1e6)
        self._loaded: tuple[str, Pack | None] = ("", None)
        self._initial: dict[str, dict[int, States]] = {}  # by instruction: first rounds, prepared once
        self.begin()

    def files(self, policy: Path) -> list[Path]:
        """The library's."""
        folder = self._folder or library_path(policy)
        return Library(folder).files if (folder / INDEX).is_file() else [folder / INDEX]

    def first_observations(self, policy: Path) -> frozenset[str]:
        """Those of the library's episodes."""
        return Library(self._folder or library_path(policy)).first_observations

    def attach(self, policy: Policy) -> None:
        """Opens the library, and prepares how its episodes begin while the memory lasts.

        Raises:
            CheckpointError: There is none, it is damaged, or it was made with other weights.
            ValueError: It has no masks for this share of neurons.
        """
        self._policy, self._library = policy, Library(self._folder or library_path(policy.path))
        self._library.require(policy.files)
        if self._neurons.ratio < 1 and self._neurons.ratio not in self._library.ratios:
            raise ValueError(
                f"the library has masks for the shares {', '.join(map(str, self._library.ratios))} of the neurons, not "
                f"for {self._neurons.ratio}; build one with --neurons {self._neurons.ratio}"
            )
        self._neurons.anchors = self._library.anchors
        width, ahead, _ = self._window_options
        for instruction in self._library.instructions:
            pack = self._pack(instruction)
            assert pack is not None
            for rows in pack.episodes:
                state = self._state(pack, rows.start)
                self._most = self._memory // max(_bytes(state), 1)
                if len(self._resident) + width * (ahead + 1) >= self._most:  # the window needs the rest
                    return
                self._initial.setdefault(instruction, {})[rows.start] = state

    def begin(self) -> None:
        """Forgets the last episode, and keeps how others begin."""
        self._window: Window | None = None
        self._instruction: str | None = None
        self._prepared: dict[int, States] = {}
        self._retrieved: Counter[int] = Counter()
        self._count: Counter[str] = Counter()
        self._fallen, self._budget_ns, self._route = False, 0, FULL
        self._rows.begin()
        self._neurons.begin()

    def look(self, call: Call) -> None:
        """Retrieves the round's reference.

        Raises:
            Stalled: The same one for the umpteenth time.
        """
        self._budget_ns, self._route, self._rows.reference, self._neurons.masks = 0, FULL, None, None
        with call.stage("retrieve"):
            self._retrieve(call)
        self._count[f"{self._route}_rounds"] += 1
        call.extra["cache_mb"] = sum(map(_bytes, self._resident)) / 1e6

    def _retrieve(self, call: Call) -> None:
        if call.instruction != self._instruction:
            self._instruction, pack = call.instruction, self._pack(call.instruction)
            self._prepared = dict(self._initial.get(call.instruction, {}))
            arms = len(self._policy.processor.gripper)
            self._window = None if pack is None else Window(pack, *self._window_options, arms)
        pack, window = self._pack(call.instruction), self._window
        if self._fallen or pack is None or window is None:
            self._route = FALLBACK
            return
        found = window.match(query_of(call.prefix), call.inputs.state[0], self._prepared)
        if found.similarity is not None:
            call.extra["similarity"] = found.similarity
        keep = {*window.rows, *(() if found.row is None else (found.row,))}
        initial = self._initial.get(call.instruction, {})
        self._prepared = {row: each for row, each in self._prepared.items() if row in keep or row in initial}
        if found.row is None:
            self._fallen = found.similarity is not None  # else nothing was ready, which may change
            self._route = FALLBACK if self._fallen else FULL
            return
        self._retrieved[found.row] += 1
        most = max(map(len, pack.episodes))
        if self._retrieved[found.row] > most:
            raise Stalled(
                f"the robot is stalled: one reference was retrieved {self._retrieved[found.row]} times, and no episode "
                f"of this instruction has more than {most} rounds"
            )
        self._route = CACHED
        self._rows.reference = self._prepared[found.row]
        if self._neurons.ratio < 1:
            which = self._library.ratios.index(self._neurons.ratio)
            masks = pack.masks(found.row, which, self._library.neurons)
            self._neurons.masks = masks.to(call.noise.device).unbind()

    def idle(self, budget_ns: int) -> None:
        """Prepares candidates of the next round, as many as time and memory allow (equation 5)."""
        self._budget_ns += budget_ns
        if self._window is None or self._fallen:
            return
        pack = self._pack(self._instruction or "")
        assert pack is not None
        for row in self._window.rows:
            if row in self._prepared:
                continue
            if self._budget_ns < self._rebuild_ns or len(self._resident) >= self._most:
                return
            self._budget_ns -= self._rebuild_ns
            self._prepared[row] = self._state(pack, row)
            self._count["rebuilt"] += 1

    def prefill_ops(self) -> Ops:
        """The Context Cache."""
        return self._rows

    def step_ops(self) -> Ops:
        """The Action Cache."""
        return self._neurons

    def route(self, call: Call) -> str | None:
        """``cached`` with a reference, ``fallback`` in an episode that goes on densely, else ``full``."""
        return None if self._route == FULL else self._route

    def observe_full(self, call: Call) -> None:
        """Reports what was computed in this round."""
        self._rows.report(call)
        self._neurons.report(call)

    def counters(self) -> dict[str, float]:
        """Rounds by route, prepared references, and what both caches took over."""
        return {**self._rows.counters(), **self._neurons.counters(), **self._count}

    @property
    def _resident(self) -> list[States]:
        """All prepared references, each once."""
        every = [*self._prepared.values(), *(each for rows in self._initial.values() for each in rows.values())]
        return list({id(each): each for each in every}.values())

    def _pack(self, instruction: str) -> Pack | None:
        """Returns the executions of an instruction; those that were requested last are kept."""
        if self._loaded[0] != instruction or self._loaded[1] is None:
            self._loaded = (instruction, self._library.pack(instruction))
        return self._loaded[1]

    @torch.inference_mode()
    def _state(self, pack: Pack, row: int) -> States:
        model = self._policy.model
        return states(model, pack.inputs(row).to(model.device, model.dtype))


def _bytes(reference: States) -> int:
    return sum(tensor.nbytes for pair in reference for tensor in pair)
