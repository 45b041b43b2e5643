"""rMuscle's retrieval: a window of rounds that slides over the episodes most like the present one.

What a method needs of a round of the library is not stored but prepared again, in the time in which the robot moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..policies.policy import Policy
from ..policies.round import FULL, Call
from .admission import Admission, Admitted
from .library import INDEX, Library, Pack, library_path, query_of

CACHED, FALLBACK = "cached", "fallback"
T = TypeVar("T")


class Stalled(RuntimeError):
    """The robot does not get on: one reference was retrieved more often than any episode of the task has rounds."""


@dataclass(frozen=True)
class Limits:
    """What a retrieval may use, and when it gives up.

    Attributes:
        library: Folder of the library; empty for the one next to the policy.
        similarity: Below it the episode goes on densely.
        width: Episodes among which is searched (T).
        ahead: Rounds that are prepared ahead in each (L), and states that are compared.
        memory_mb: Memory for prepared references, in units of 10^6 bytes.
        rebuild_ms: Time that preparing a reference is taken to need. It is stated, not measured, so that an episode
            comes out the same on every machine; what takes longer is charged to the next round.

    Raises:
        ValueError: A value is out of range.
    """

    library: str
    similarity: float
    width: int
    ahead: int
    memory_mb: int
    rebuild_ms: float

    def __post_init__(self) -> None:
        if not -1 <= self.similarity <= 1 or self.width < 1 or self.ahead < 1:
            raise ValueError(
                f"similarity must be from -1 to 1, width and ahead at least 1, got {self.similarity}, {self.width} and "
                f"{self.ahead}"
            )
        if not self.memory_mb >= 0 or not self.rebuild_ms >= 0:
            raise ValueError(f"memory_mb and rebuild_ms must be at least 0, got {self.memory_mb} and {self.rebuild_ms}")

    def folder(self, policy: Path) -> Path:
        """Returns where the library of a policy lies."""
        return Path(self.library) if self.library else library_path(policy)

    def files(self, policy: Path) -> list[Path]:
        """Returns the library's files, or that which is missing."""
        folder = self.folder(policy)
        return Library(folder).files if (folder / INDEX).is_file() else [folder / INDEX]


class Retrieval(Generic[T]):
    """Finds the reference of each round, and prepares candidates of the next one.

    Args:
        limits: See there.
        prepare: Makes of a row of a pack what the method needs of it.
        size: Its bytes.
        admit: Most successful episodes that join the library while it is used.

    Attributes:
        library: After ``open``.
        admission: Likewise: what joined it.
        route: Of the last round: ``cached`` with a reference; ``fallback`` in an episode that goes on densely, or for
            an instruction without executions; ``full`` where no reference was ready.
        row: The reference's row.
        reference: What was prepared of it; None without one.
        retrieved: How often each row was.
        window: Candidates of the episode; None where its instruction has no executions.
        prepared: Candidates that are ready.
        rounds: Rounds by what was found (``cached_rounds``, ``fallback_rounds``, and ``unprepared_rounds``, in which no
            reference was ready), and ``rebuilt``.
    """

    def __init__(
        self, limits: Limits, prepare: Callable[[Pack, int], T], size: Callable[[T], int], admit: int = 0
    ) -> None:
        self._limits, self._prepare, self._size, self._admit = limits, prepare, size, admit
        self._loaded: tuple[str, Pack | None] = ("", None)
        self._initial: dict[str, dict[int, T]] = {}  # by instruction: first rounds, prepared once
        self.begin()

    def open(self, policy: Policy) -> Library:
        """Opens the library.

        Raises:
            CheckpointError: There is none, it is damaged, or it was made with other weights.
        """
        self._policy, self.library = policy, Library(self._limits.folder(policy.path))
        self.library.require(policy.files)
        self.admission = Admission(self.library, self._admit)
        return self.library

    @torch.inference_mode()
    def prepare_beginnings(self, instructions: Iterable[str] | None = None) -> None:
        """Prepares how episodes of some instructions begin while the memory lasts; of the library's for None."""
        limits = self._limits
        for instruction in self.library.instructions if instructions is None else instructions:
            pack = self.pack(instruction)
            assert pack is not None
            for rows in pack.episodes:
                state = self._prepare(pack, rows.start)
                self._most = limits.memory_mb * 1_000_000 // max(self._size(state), 1)
                if len(self._resident) + limits.width * (limits.ahead + 1) >= self._most:  # the window needs the rest
                    return
                self._initial.setdefault(instruction, {})[rows.start] = state

    def begin(self) -> None:
        """Forgets the last episode, and keeps how others begin."""
        self.window: Window | None = None
        self._instruction: str | None = None
        self.prepared: dict[int, T] = {}
        self.retrieved: Counter[int] = Counter()
        self.rounds: Counter[str] = Counter()
        self._fallen, self._budget_ns = False, 0
        self.route, self.row = FULL, -1
        self.reference: T | None = None

    def admit(self, episode: Admitted) -> bool:
        """Lets an episode join the library, now that it is over; returns whether it stays.

        How the episodes of its instruction begin is prepared anew, in the time between two episodes.
        """
        changed = self.admission.add(episode)
        self.window, self.prepared, self._loaded = None, {}, ("", None)
        for instruction in changed:
            self._initial.pop(instruction, None)
        self.prepare_beginnings(sorted(each for each in changed if self.pack(each) is not None))
        return episode in self.admission.episodes

    def look(self, call: Call) -> None:
        """Retrieves the round's reference.

        Raises:
            Stalled: The same one for the umpteenth time.
        """
        self._budget_ns, self.route, self.reference = 0, FULL, None
        with call.stage("retrieve"):
            self._retrieve(call)
        self.rounds["unprepared_rounds" if self.route == FULL else f"{self.route}_rounds"] += 1
        call.extra["cache_mb"] = sum(map(self._size, self._resident)) / 1e6

    def _retrieve(self, call: Call) -> None:
        pack = self.pack(call.instruction)
        if call.instruction != self._instruction:
            self._instruction, limits = call.instruction, self._limits
            self.prepared = dict(self._initial.get(call.instruction, {}))
            arms = len(self._policy.processor.gripper)
            self.window = None if pack is None else Window(pack, limits.width, limits.ahead, limits.similarity, arms)
        window = self.window
        if self._fallen or pack is None or window is None:
            self.route = FALLBACK
            return
        found = window.match(query_of(call.prefix), call.inputs.state[0], self.prepared)
        if found.similarity is not None:
            call.extra["similarity"] = found.similarity
        keep = {*window.rows, *(() if found.row is None else (found.row,))}
        initial = self._initial.get(call.instruction, {})
        self.prepared = {row: each for row, each in self.prepared.items() if row in keep or row in initial}
        if found.row is None:
            self._fallen = found.similarity is not None  # else nothing was ready, which may change
            self.route = FALLBACK if self._fallen else FULL
            return
        self.retrieved[found.row] += 1
        most = max(map(len, pack.episodes))
        if self.retrieved[found.row] > most:
            raise Stalled(
                f"the robot is stalled: one reference was retrieved {self.retrieved[found.row]} times, and no episode "
                f"of this instruction has more than {most} rounds"
            )
        self.route, self.row, self.reference = CACHED, found.row, self.prepared[found.row]

    @torch.inference_mode()
    def idle(self, budget_ns: int) -> None:
        """Prepares candidates of the next round, as many as time and memory allow (rMuscle, equation 5)."""
        self._budget_ns += budget_ns
        if self.window is None or self._fallen:
            return
        pack, needed_ns = self.pack(self._instruction or ""), int(self._limits.rebuild_ms * 1e6)
        assert pack is not None
        for row in self.window.rows:
            if row in self.prepared:
                continue
            if self._budget_ns < needed_ns or len(self._resident) >= self._most:
                return
            self._budget_ns -= needed_ns
            self.prepared[row] = self._prepare(pack, row)
            self.rounds["rebuilt"] += 1

    def pack(self, instruction: str) -> Pack | None:
        """Returns the executions of an instruction; those that were requested last are kept."""
        if self._loaded[0] != instruction or self._loaded[1] is None:
            self._loaded = (instruction, self.admission.pack(instruction))
        return self._loaded[1]

    @property
    def _resident(self) -> list[T]:
        """All prepared references, each once."""
        every = [*self.prepared.values(), *(each for rows in self._initial.values() for each in rows.values())]
        return list({id(each): each for each in every}.values())


class Match(NamedTuple):
    """What a retrieval found.

    Attributes:
        row: The reference; None where no candidate is ready or similar enough.
        similarity: Largest cosine similarity among the candidates that are ready; None where none is.
    """

    row: int | None
    similarity: float | None


class Window:
    """The candidates of one episode.

    The first round chooses ``width`` episodes by how they begin. Of each, the matched round and ``ahead`` more are
    candidates from then on.

    Args:
        pack: The executions of the episode's instruction.
        width: Episodes (T), and candidates of a round whose motion is compared.
        ahead: Rounds behind the matched one (L), and states of a history.
        threshold: Similarity below which a candidate does not count.
        arms: Arms of the robot.
    """

    def __init__(self, pack: Pack, width: int, ahead: int, threshold: float, arms: int) -> None:
        self._pack, self._width, self._ahead, self._threshold, self._arms = pack, width, ahead, threshold, arms
        self._history: list[Tensor] = []
        self._at: dict[range, int] = {}  # matched round of every episode in the window, the best one first

    @property
    def starts(self) -> list[int]:
        """First rounds of all episodes."""
        return [rows.start for rows in self._pack.episodes]

    @property
    def rows(self) -> list[int]:
        """Candidates of the next round, in the order in which they are likely to be needed."""
        if not self._at:
            return self.starts
        places = [(ahead, rows, at + ahead) for rows, at in self._at.items() for ahead in range(self._ahead + 1)]
        return [place for _, rows, place in sorted(places, key=lambda each: each[0]) if place in rows]

    def match(self, query: Tensor, state: Tensor, ready: Collection[int]) -> Match:
        """Returns the reference of a round, and slides the window to it.

        Args:
            query: [P, n], see :func:`~replan.accel.library.query_of`.
            state: [state_dim], normalised.
            ready: Rounds that can be a reference.
        """
        self._history = [*self._history, state.float().cpu()][-self._ahead :]
        first = not self._at
        if query.shape != self._pack.queries.shape[1:]:  # another camera is missing: nothing can be compared
            return Match(None, 0.0)
        rows = self.starts if first else [row for row in self.rows if row in ready]
        if not rows:
            return Match(None, None)
        similarity = dict(zip(rows, self._similarity(query, rows), strict=True))
        ranked = sorted(rows, key=similarity.__getitem__, reverse=True)
        self._slide(ranked, first)
        eligible = [row for row in ranked if row in ready and similarity[row] >= self._threshold][: self._width]
        best = similarity[ranked[0]]
        if not eligible:
            missing = best >= self._threshold  # similar enough, and not ready
            return Match(None, None if missing else best)
        chosen = eligible[0] if first else min(eligible, key=self._motion)
        if not first:
            episode = self._episode(chosen)
            self._at = {episode: chosen, **{each: at for each, at in self._at.items() if each != episode}}
        return Match(chosen, similarity[chosen])

    def _similarity(self, query: Tensor, rows: list[int]) -> list[float]:
        """Cosines between the query and those of rows."""
        stored = self._pack.queries[rows].flatten(1).to(query.device, torch.float32)
        return torch.cosine_similarity(stored, query.float().flatten()[None]).tolist()

    def _slide(self, ranked: list[int], first: bool) -> None:
        """Chooses the episodes in the first round; then moves every one to its most similar round."""
        best: dict[range, int] = {}
        for row in ranked:
            best.setdefault(self._episode(row), row)
        self._at = dict(list(best.items())[: self._width]) if first else {**self._at, **best}

    def _episode(self, row: int) -> range:
        return next(rows for rows in self._pack.episodes if row in rows)

    def _motion(self, row: int) -> float:
        """Distance of the last states to those before a candidate: the largest of the arms' RMS."""
        begin = self._episode(row).start
        length = min(len(self._history), row + 1 - begin)
        mine, theirs = torch.stack(self._history[-length:]), self._pack.states[row + 1 - length : row + 1]
        moved = mine - theirs
        arms = moved.chunk(self._arms, -1) if moved.shape[-1] % self._arms == 0 else (moved,)
        return max(float(arm.square().mean().sqrt()) for arm in arms)
