"""Latencies that were not measured with the episodes: another machine's, scaled, jittered, behind a network.

What is random comes from (seed, cell, round) alone: any order of episodes and any number of workers give the same
latencies, and all methods of a cell meet the same luck.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..results.store import FILE, Store
from .clock import LONGEST, FinishedRound, Fixed, LatencySource, Profile, parse_duration, read_trace
from .spec import BadInput, unknown

NAMES = ("scale", "jitter", "network", "seed")
_PICK, _LUCK = range(2)  # streams of random numbers


class Terms(NamedTuple):
    """What is done to the latency of a source.

    Attributes:
        scale: Factor.
        jitter: Standard deviation of the logarithm of a further, log-normal factor with median 1.
        network_ns: Least time of the way there and back.
        queue_ns: Mean of an exponential time on top of it.
        seed: Seed of what is random.
    """

    scale: float = 1.0
    jitter: float = 0.0
    network_ns: int = 0
    queue_ns: int = 0
    seed: int = 0


@dataclass(frozen=True)
class WhatIf(LatencySource):
    """Another source with :class:`Terms`: ``scale * source * jitter + network``."""

    source: LatencySource
    terms: Terms

    def identity(self) -> Any:
        """Returns the source's identity and the terms."""
        return {"what_if": self.source.identity(), **self.terms._asdict()}

    def of(self, finished: FinishedRound) -> int:
        """Returns the latency, at most :data:`.clock.LONGEST`."""
        terms, luck = self.terms, _generator(self.terms.seed, finished, _LUCK)
        jitter = math.exp(terms.jitter * luck.standard_normal())
        network = terms.network_ns + terms.queue_ns * luck.standard_exponential()
        return min(round(terms.scale * self.source.of(finished) * jitter + network), LONGEST)

    def check(self, method: str, routes: Iterable[str]) -> None:
        """Makes sure that the source has a latency for the method.

        Raises:
            BadInput: It has none.
        """
        self.source.check(method, routes)


@dataclass(frozen=True)
class Resampled(LatencySource):
    """For every round a recorded latency of its method and route, wherever it was recorded.

    Attributes:
        recorded: (method, route) to latencies in nanoseconds.
        seed: Seed of the choice.
    """

    recorded: Mapping[tuple[str, str], tuple[int, ...]]
    seed: int

    def identity(self) -> Any:
        """Returns a digest of what was recorded, and the seed."""
        content = json.dumps(sorted((*name, *latencies) for name, latencies in self.recorded.items()))
        return {"resample": hashlib.sha256(content.encode()).hexdigest(), "seed": self.seed}

    def of(self, finished: FinishedRound) -> int:
        """Returns one of the recorded latencies.

        Raises:
            BadInput: The method never took the route in the recording.
        """
        latencies = self.recorded.get((finished.method, finished.route))
        if not latencies:
            routes = sorted(route for method, route in self.recorded if method == finished.method)
            raise unknown(f"route for resampled latencies of {finished.method!r}:", finished.route, routes)
        return latencies[_generator(self.seed, finished, _PICK).integers(len(latencies))]

    def check(self, method: str, routes: Iterable[str]) -> None:
        """Makes sure that the method was recorded; which of its routes it takes is only known when it does.

        Raises:
            BadInput: It was not.
        """
        recorded = {name for name, _ in self.recorded}
        if method not in recorded:
            raise unknown("method for these resampled latencies:", method, recorded)


def make_what_if(source: LatencySource, terms: Terms) -> LatencySource:
    """Returns a source with terms; the source itself where they change nothing.

    Raises:
        BadInput: The source is one of a kind that cannot be changed.
    """
    if terms == Terms(seed=terms.seed):
        return source
    if not isinstance(source, (Fixed, Profile, Resampled)):
        raise BadInput(
            "latencies that are measured, or belong to the rounds of a trace, cannot be changed; "
            "write resample:FILE with the trace, or with the run directory, that has them"
        )
    return WhatIf(source, terms)


def split_terms(text: str) -> tuple[str, Terms]:
    """Takes the terms off the end of a latency source: ``fixed:58ms:scale=0.5:jitter=10%:network=20ms/5ms:seed=1``.

    Raises:
        BadInput: A term has no meaning, or is given twice.
    """
    given: dict[str, str] = {}
    while True:
        rest, colon, last = text.rpartition(":")
        name, equals, value = last.partition("=")
        if not (colon and equals and name.strip() in NAMES):
            break
        if name.strip() in given:
            raise BadInput(f"latency {text!r} has {name.strip()!r} twice")
        given[name.strip()], text = value.strip(), rest
    network, _, queue = given.get("network", "0ms").partition("/")
    return text, Terms(
        scale=_number("scale", given.get("scale", "1"), 1e-6, 1e6),
        jitter=_number("jitter", given.get("jitter", "0"), 0, 3),
        network_ns=parse_duration(network),
        queue_ns=parse_duration(queue or "0ms"),
        seed=int(_number("seed", given.get("seed", "0"), 0, 2**53, whole=True)),
    )


def read_recorded(path: str | Path, seed: int) -> Resampled:
    """Reads the latencies of a trace, or the wall times of a run's rounds.

    Of a run, rounds of the warm-up are left out.

    Args:
        path: File of a trace, or a run directory.
        seed: Seed of the choice.

    Raises:
        BadInput: It is neither, or has no latency.
        StoreError: The run cannot be read.
    """
    recorded: dict[tuple[str, str], list[int]] = {}
    if Path(path).is_dir() or Path(path).name == FILE:
        with Store.open(path) as store:
            for row in store.episodes():
                for each in row.rounds:
                    if row.status == "done" and not each.warmup:
                        recorded.setdefault((row.method, each.route), []).append(each.host_ns)
    else:
        for (_, method), rounds in read_trace(path).episodes.items():
            for route, ns in rounds:
                recorded.setdefault((method, route), []).append(ns)
    if not recorded:
        raise BadInput(f"{str(path)!r} has no round whose latency could be resampled")
    return Resampled({name: tuple(sorted(latencies)) for name, latencies in recorded.items()}, seed)


def _generator(seed: int, finished: FinishedRound, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(finished.cell[:16], 16), finished.index, stream])


def _number(name: str, text: str, least: float, most: float, *, whole: bool = False) -> float:
    """Reads a number or a percentage."""
    percent = text.endswith("%") and not whole
    try:
        number = int(text) if whole else float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise BadInput(f"{name}={text!r} of a latency must be a {'whole ' * whole}number from {least:g} to {most:g}")
    return number
