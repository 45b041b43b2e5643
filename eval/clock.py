"""How long a round takes as the environment sees it, in integer nanoseconds.

A latency source answers one question, and answers it the same way in any order of episodes and on any number of
workers: how many nanoseconds does the environment move during this round? Only ``measured`` looks at the machine; it
leaves a trace behind, and replaying the trace gives the same episodes again.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, Protocol

from ..files import write_file
from ..results.schema import EpisodeRow
from .spec import BadInput, read_input, read_toml, unknown

PROFILES = Path(__file__).with_name("profiles.toml")
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class RouteWithoutLatency(BadInput):
    """A method may take routes for which a latency profile has no latency.

    Attributes:
        profile: Name of the profile.
        method: The method as the user wrote it.
        missing: The routes.
    """

    def __init__(self, profile: str, method: str, missing: tuple[str, ...], available: Iterable[str]) -> None:
        self.profile, self.method, self.missing = profile, method, missing
        super().__init__(
            f"latency profile {profile!r} has no latency for the route {', '.join(missing)} of method {method!r}, only"
            f" for {', '.join(available) or 'none'}; give a profile that has it"
        )


MOST_TRACE = 1 << 30  # bytes
LONGEST = 600 * UNITS["s"]  # a longer latency is a typing mistake: no robot waits ten minutes for an action


class TraceDiverged(RuntimeError):
    """A replayed episode left its recording, so the recorded latencies do not belong to it."""


@dataclass(frozen=True)
class FinishedRound:
    """What a latency source may look at.

    Attributes:
        cell: Address of the cell.
        method: Method as the user wrote it.
        index: Position of the round in its episode.
        route: Route that the method took.
        host_ns: Wall time that the round took here.
    """

    cell: str
    method: str
    index: int
    route: str
    host_ns: int


class LatencySource(Protocol):
    """A latency source."""

    def identity(self) -> Any:
        """Returns JSON values that differ whenever the latencies could; part of the measurement's address."""
        ...

    def of(self, finished: FinishedRound) -> int:
        """Returns the latency of a round, in nanoseconds."""
        ...

    def end(self, cell: str, method: str, rounds: int) -> None:
        """Takes the number of rounds of an episode, now that it is over.

        Raises:
            TraceDiverged: The recorded episode had more.
        """

    def check(self, method: str, routes: Iterable[str]) -> None:
        """Makes sure that there is a latency for a method, whichever of its routes it takes.

        Raises:
            BadInput: There is none.
        """


@dataclass(frozen=True)
class Fixed(LatencySource):
    """The same latency for every round."""

    ns: int

    def identity(self) -> Any:
        """Returns the duration."""
        return {"fixed": self.ns}

    def of(self, finished: FinishedRound) -> int:
        """Returns the duration."""
        return self.ns


@dataclass(frozen=True)
class Profile(LatencySource):
    """One latency per route, as published for some machine.

    A profile knows routes, not methods: a method that shortens its full route (``few_step``, ``dp_cache``) is charged a
    whole one.
    """

    name: str
    routes: Mapping[str, int]

    def identity(self) -> Any:
        """Returns the latency of each route, since a name may stand for other figures later."""
        return {"profile": dict(self.routes)}

    def of(self, finished: FinishedRound) -> int:
        """Returns the latency of the route.

        Raises:
            BadInput: The profile has no latency for the route.
        """
        if finished.route not in self.routes:
            raise unknown(f"route for the latency profile {self.name!r}:", finished.route, self.routes)
        return self.routes[finished.route]

    def check(self, method: str, routes: Iterable[str]) -> None:
        """Makes sure that the profile has a latency for every route.

        Raises:
            RouteWithoutLatency: It has not.
        """
        missing = tuple(route for route in routes if route not in self.routes)
        if missing:
            raise RouteWithoutLatency(self.name, method, missing, self.routes)


@dataclass(frozen=True)
class Measured(LatencySource):
    """The wall time that the round took here. The only source that depends on the machine."""

    def identity(self) -> Any:
        """Returns a constant: equal measurements may have different latencies."""
        return "measured"

    def of(self, finished: FinishedRound) -> int:
        """Returns the wall time."""
        return finished.host_ns


@dataclass(frozen=True)
class Trace(LatencySource):
    """Recorded latencies, replayed to the same rounds.

    Attributes:
        episodes: (cell, method) to the route and the latency of every round, in order.
        digest: SHA-256 of the file.
    """

    episodes: Mapping[tuple[str, str], tuple[tuple[str, int], ...]]
    digest: str

    def identity(self) -> Any:
        """Returns the digest of the file."""
        return {"trace": self.digest}

    def of(self, finished: FinishedRound) -> int:
        """Returns the recorded latency.

        Raises:
            TraceDiverged: The recording has no such round, or another route was taken in it.
        """
        rounds = self.episodes.get((finished.cell, finished.method), ())
        if finished.index >= len(rounds):
            raise TraceDiverged(
                f"trace diverged at round {finished.index}: "
                f"only {len(rounds)} rounds of {finished.method!r} are recorded for this cell"
            )
        route, ns = rounds[finished.index]
        if route != finished.route:
            raise TraceDiverged(f"trace diverged at round {finished.index}: recorded {route!r}, now {finished.route!r}")
        return ns

    def end(self, cell: str, method: str, rounds: int) -> None:
        """Compares the number of rounds with the recorded one.

        Raises:
            TraceDiverged: More are recorded.
        """
        recorded = len(self.episodes.get((cell, method), ()))
        if rounds < recorded:
            raise TraceDiverged(
                f"trace diverged after round {rounds - 1}: the episode is over, and {recorded} are recorded"
            )

    def check(self, method: str, routes: Iterable[str]) -> None:
        """Makes sure that the method was recorded.

        Raises:
            BadInput: It was not.
        """
        recorded = {name for _, name in self.episodes}
        if method not in recorded:
            raise unknown("method for this trace:", method, recorded)


def parse_duration(text: str) -> int:
    """Returns a duration such as ``58ms``, ``7.8 ms``, ``250us``, ``1s`` or ``2000000ns`` in nanoseconds.

    Raises:
        BadInput: No unit, not a number, negative, or finer than a nanosecond.
    """
    text = text.strip()
    unit = next((unit for unit in UNITS if text.endswith(unit)), None)
    if unit is None:
        raise BadInput(f"duration {text!r} has no unit; write for example '58ms' (units: {', '.join(UNITS)})")
    try:
        ns = Decimal(text[: -len(unit)].strip()) * UNITS[unit]
    except DecimalException as error:
        raise BadInput(f"duration {text!r} is not a number and a unit; write for example '58ms'") from error
    if not ns.is_finite() or not 0 <= ns <= LONGEST:
        raise BadInput(f"duration {text!r} must lie between 0 and {LONGEST // UNITS['s']} s")
    if ns != ns.to_integral_value():
        raise BadInput(f"duration {text!r} is finer than a nanosecond")
    return int(ns)


def parse_latency(text: str) -> LatencySource:
    """Returns the latency source that a user wrote.

    ``zero``, ``fixed:58ms``, ``profile:NAME`` (published figures, in ``profiles.toml`` next to this file),
    ``profile:FILE.toml#NAME`` (your own), ``measured``, ``trace:FILE`` (what a ``measured`` run left),
    ``resample:FILE|RUN`` (what was recorded, in another order); with terms behind it, see :mod:`.whatif`.

    Raises:
        BadInput: The source does not exist, or its argument cannot be used.
        StoreError: The run cannot be read.
    """
    from .whatif import make_what_if, read_recorded, split_terms  # which has sources of the kinds of this file

    text, terms = split_terms(text)
    kind, _, argument = text.partition(":")
    if kind == "resample" and argument:
        return make_what_if(read_recorded(argument, terms.seed), terms)
    return make_what_if(_parse_source(text, kind, argument), terms)


def _parse_source(text: str, kind: str, argument: str) -> LatencySource:
    if kind in ("zero", "measured"):
        if argument:
            raise BadInput(f"latency {text!r}: {kind!r} takes no argument")
        return Fixed(0) if kind == "zero" else Measured()
    if kind not in ("fixed", "profile", "trace", "resample"):
        raise unknown("latency source", kind, ("zero", "fixed", "profile", "measured", "trace", "resample"))
    if not argument:
        raise BadInput(
            f"latency {text!r} lacks its argument; write fixed:58ms, profile:NAME, trace:FILE or resample:FILE"
        )
    if kind == "fixed":
        return Fixed(parse_duration(argument))
    return _read_profile(argument) if kind == "profile" else read_trace(argument)


def check_routes(latency: LatencySource, routes: Mapping[str, Iterable[str]]) -> None:
    """Makes sure, before anything is run, that a profile has a latency for every route, and a trace for every method.

    Args:
        latency: The latency source; no other kind can lack one.
        routes: Method as the user wrote it to the routes that it may take.

    Raises:
        RouteWithoutLatency: The profile does not.
        BadInput: The trace does not.
    """
    for method, taken in routes.items():
        latency.check(method, taken)


def _read_profile(argument: str) -> Profile:
    file, _, name = argument.rpartition("#")
    profiles = read_toml(file or PROFILES)
    if name not in profiles:
        raise unknown("latency profile", name, profiles)
    if not isinstance(profiles[name], dict):
        raise BadInput(f"latency profile {name!r} must be a table, [{name}], with a duration per route")
    routes = {}
    for route, duration in profiles[name].items():
        if route != "source":
            if not isinstance(duration, str):
                raise BadInput(f"latency profile {name!r}, route {route!r}: write '58ms', not {duration!r}")
            routes[route] = parse_duration(duration)
    return Profile(name, routes)


def read_trace(path: str | Path) -> Trace:
    """Reads a trace: JSON lines, one episode each, ``{"cell":, "method":, "rounds": [[route, ns], ...]}``.

    Raises:
        BadInput: There is no such file, or it is not a trace.
    """
    data = read_input(path, "trace", MOST_TRACE)
    episodes = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            episode = json.loads(line)
            rounds = tuple((str(route), _nanoseconds(ns)) for route, ns in episode["rounds"])
            name = episode["cell"], episode["method"]
            if name in episodes:
                raise ValueError(f"{name[1]!r} was on this cell before")
            episodes[name] = rounds
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(f"{str(path)!r} is not a trace: line {number} is not an episode ({error!r})") from error
        if not all(0 <= ns <= LONGEST for _, ns in rounds):
            raise BadInput(f"{str(path)!r}, line {number}: a latency is negative, or above {LONGEST // UNITS['s']} s")
    if not episodes:
        raise BadInput(f"the trace {str(path)!r} is empty")
    return Trace(episodes, hashlib.sha256(data).hexdigest())


def _nanoseconds(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{value} is no duration")
    return operator.index(value)


def write_trace(path: str | Path, episodes: Iterable[EpisodeRow]) -> None:
    """Writes the latencies of finished episodes, so that ``trace:FILE`` gives the same episodes again.

    The file appears whole or not at all, and does not depend on the order of the episodes.
    """
    lines = sorted(
        json.dumps({"cell": e.cell, "method": e.method, "rounds": [[r.route, r.latency_ns] for r in e.rounds]})
        for e in episodes
        if e.status == "done"
    )
    write_file(path, "".join(f"{line}\n" for line in lines))
