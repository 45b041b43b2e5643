"""What repeats itself inside a policy from round to round and from episode to episode (rMuscle, section 3).

Dense episodes are played, and every round is compared with a reference: the round before, the round of another episode
of the same task that looks most like it, and that of an episode of another task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..accel.library import query_of
from ..accel.rmuscle.action_cache import SelectedNeurons, halves, important
from ..accel.rmuscle.context_cache import SplicedRows, States
from ..accel.rows import drift
from ..policies.model import Ops
from ..policies.policy import Policy
from ..policies.round import Call, Round
from ..policies.seams import Method, Seam
from .play import Player

if TYPE_CHECKING:
    from .registry import Registry

SHARES = tuple(number / 10 for number in range(1, 11))
"""Shares of tokens and of neurons at which coverage is stated."""

NEURONS = 0.5
"""Share of the neurons that are called important, as in the paper's section 3.4."""

REFERENCES = ("round before", "same task", "other task")


@dataclass
class Seen:
    """A round, and what it was inside.

    Attributes:
        task: The episode's.
        episode: Which one.
        progress: Share of the episode that lies before it, set when the episode has ended.
        query: [n] what a retrieval compares.
        states: FFN inputs and outputs of the visual tokens, per layer.
        scores: [steps, layers, neurons] contributions.
    """

    task: str
    episode: int
    progress: float
    query: Tensor
    states: States
    scores: Tensor


class Range(NamedTuple):
    """A mean over rounds, and the least and the largest mean of a task."""

    mean: float
    low: float
    high: float


@dataclass
class Analysis:
    """The tables; shares and similarities are from 0 to 1.

    Attributes:
        rounds: Rounds that were seen.
        inputs: Cosine similarity of FFN inputs of the prefill, by reference.
        outputs: The same of outputs.
        tokens: By ranking, the share of the squared change of FFN outputs that the top shares of the visual tokens
            hold; against the same task.
        neurons: Share of all contributions that the top shares of the neurons hold.
        overlap: Share of the important neurons that a reference also has, by reference.
        shared: What the important neurons of a group of steps hold of a step's contributions, over what the step's own
            hold.
        diagonal: Share of rounds whose most similar round of the same task is at most 10 points of progress away.
        places: Progress of each round and of that most similar one.
    """

    rounds: int
    inputs: dict[str, Range] = field(default_factory=dict)
    outputs: dict[str, Range] = field(default_factory=dict)
    tokens: dict[str, list[float]] = field(default_factory=dict)
    neurons: list[float] = field(default_factory=list)
    overlap: dict[str, Range] = field(default_factory=dict)
    shared: float = math.nan
    diagonal: float = math.nan
    places: list[tuple[float, float]] = field(default_factory=list)


class Watching(Method):
    """The dense policy, bit for bit; keeps what its last round was inside."""

    name = "watching"
    claims = frozenset({Seam.PREFILL_FFN, Seam.STEP_FFN})

    def __init__(self) -> None:
        self.rows, self.neurons = SplicedRows(1, keeps=True), SelectedNeurons(1, scores=True)

    def attach(self, policy: Policy) -> None:
        """Places the groups of steps."""
        self.neurons.anchors = halves(policy.model.flow)

    def begin(self) -> None:
        """Forgets the last episode."""
        self.rows.begin()
        self.neurons.begin()

    def prefill_ops(self) -> Ops:
        """Notes inputs and outputs."""
        return self.rows

    def step_ops(self) -> Ops:
        """Notes contributions."""
        return self.neurons

    def observe_full(self, call: Call) -> None:
        """Keeps the query."""
        self.query = query_of(call.prefix).float().flatten()


def record(
    registry: Registry, suite: str, policy: str | None, tasks: str | None, episodes: int, seed: int
) -> tuple[list[Seen], tuple[int, ...]]:
    """Plays episodes and returns their rounds, and the steps at which groups of denoising steps begin.

    Args:
        registry: Where suites and environments come from.
        suite: Name of the suite.
        policy: Name or path of the policy; the suite's own if empty.
        tasks: Tasks, separated by commas; all for None.
        episodes: Episodes per task; two at least, so that one can be compared with another.
        seed: Separates episodes from those of other seeds.

    Raises:
        ValueError: See :class:`.play.Player`, or the policy's model does not offer what is watched.
    """
    watching = Watching()
    player = Player(registry, suite, policy, [watching], seed)
    rounds: list[Seen] = []
    for task in tqdm(player.tasks(tasks), desc="tasks", mininterval=5.0):
        for number in range(episodes):
            mine: list[Seen] = []

            def keep(_: Round, task: str = task, number: int = number, mine: list[Seen] = mine) -> None:
                states = [(x.cpu(), y.cpu()) for x, y in watching.rows.seen]
                scores = watching.neurons.contributions().cpu()
                mine.append(Seen(task, number, 0.0, watching.query.cpu(), states, scores))

            player.play(task, number, keep)
            for place, each in enumerate(mine):
                each.progress = place / len(mine)
            rounds += mine
    return rounds, watching.neurons.anchors


def analyse(rounds: Sequence[Seen], anchors: Sequence[int]) -> Analysis:
    """Compares rounds with each other.

    Args:
        rounds: All rounds of some episodes, in order.
        anchors: Steps at which groups of denoising steps begin.
    """
    result = Analysis(len(rounds))
    pairs = {name: _pairs(rounds, name) for name in REFERENCES}
    for name, found in pairs.items():
        if found:
            result.inputs[name] = _range(found, lambda a, b: _similarity(a.states, b.states, 0))
            result.outputs[name] = _range(found, lambda a, b: _similarity(a.states, b.states, 1))
            result.overlap[name] = _range(found, _overlap)
    same = pairs["same task"]
    if same:
        result.tokens = _token_coverage(same)
        result.places = [(a.progress, b.progress) for a, b in same]
        result.diagonal = sum(abs(a - b) <= 0.1 + 1e-9 for a, b in result.places) / len(same)
    result.neurons = _mean([_neuron_coverage(each.scores) for each in rounds])
    result.shared = sum(_shared(each.scores, anchors) for each in rounds) / len(rounds)
    return result


Pair = tuple[Seen, Seen]


def _pairs(rounds: Sequence[Seen], reference: str) -> list[Pair]:
    """Returns every round with its reference, where it has one."""
    if reference == "round before":
        together = zip(rounds[:-1], rounds[1:], strict=True)
        return [(b, a) for a, b in together if (a.task, a.episode) == (b.task, b.episode)]
    queries = torch.nn.functional.normalize(torch.stack([each.query for each in rounds]), dim=1)
    likeness = queries @ queries.T
    found = []
    for number, each in enumerate(rounds):
        allowed = torch.tensor(
            [
                other.task == each.task and other.episode != each.episode
                if reference == "same task"
                else other.task != each.task
                for other in rounds
            ]
        )
        if allowed.any():
            found.append((each, rounds[int(likeness[number].masked_fill(~allowed, -2).argmax())]))
    return found


def _range(pairs: Sequence[Pair], measure: Callable[[Seen, Seen], float]) -> Range:
    by_task: dict[str, list[float]] = defaultdict(list)
    for a, b in pairs:
        by_task[a.task].append(measure(a, b))
    means = [sum(values) / len(values) for values in by_task.values()]
    every = [value for values in by_task.values() for value in values]
    return Range(sum(every) / len(every), min(means), max(means))


def _similarity(mine: States, theirs: States, which: int) -> float:
    """Mean cosine similarity over layers and visual tokens, of inputs (0) or outputs (1)."""
    return _average(
        torch.cosine_similarity(a[which].float(), b[which].float(), dim=-1).mean()
        for a, b in zip(mine, theirs, strict=True)
    )


def _overlap(mine: Seen, theirs: Seen) -> float:
    """Share of the important neurons of every step and layer that are also important in the reference."""
    a, b = _top(mine.scores, NEURONS), _top(theirs.scores, NEURONS)
    return float((a & b).sum() / a.sum())


def _top(scores: Tensor, share: float) -> Tensor:
    """Returns the mask of the largest of the last dimension."""
    count = math.ceil(share * scores.shape[-1])
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count).indices, value=True)


def _token_coverage(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Share of the squared change of outputs that chosen tokens hold, by ranking (the paper's figure 5)."""
    rankings: dict[str, list[list[float]]] = {"input change": [], "output change (best)": []}
    for mine, theirs in pairs:
        for (x, y), (old_x, old_y) in zip(mine.states, theirs.states, strict=True):
            change = (y - old_y).float().square().sum(-1)
            if not change.any():
                continue
            for name, order in zip(rankings, (drift(x, old_x), change), strict=True):
                rankings[name].append(_held(change[order.argsort(descending=True)]))
    return {name: _mean(values) for name, values in rankings.items() if values}


def _neuron_coverage(scores: Tensor) -> list[float]:
    """Share of all contributions that the largest hold, over steps and layers (figure 7)."""
    ordered = scores.sort(-1, descending=True).values
    return _mean([_held(each) for each in ordered.flatten(0, -2)])


def _held(ordered: Tensor) -> list[float]:
    """Returns what the first of some values hold of their sum, at every share of their number."""
    sums = ordered.double().cumsum(0)
    return [float(sums[math.ceil(share * len(ordered) - 1e-9) - 1] / sums[-1]) for share in SHARES]


def _shared(scores: Tensor, anchors: Sequence[int]) -> float:
    """Coverage of a step by its group's neurons over that by its own."""
    ratios = []
    for begin, end in zip(anchors, (*anchors[1:], len(scores)), strict=True):
        group = scores[begin:end]
        chosen = important(group, NEURONS)
        for step in group:
            ratios.append(step.gather(-1, chosen).sum(-1) / (step * _top(step, NEURONS)).sum(-1))
    return _average(each.mean() for each in ratios)


def _average(values: Iterable[Tensor]) -> float:
    return float(torch.stack(list(values)).mean())


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]
