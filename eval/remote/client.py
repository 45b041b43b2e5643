"""A policy on a server, as ``--policy ws://HOST:PORT`` names it.

The server may be openpi's own or ``replan serve``. The latter says which policy and method it runs; of the former
nothing is known but its answers, and rows carry a mark that says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from ...policies.planner import ALONE, PlannedRound, QueueAgent, checked_actions
from ...policies.round import Stopwatch
from ...results.schema import Mark
from .. import source
from ..cells import address as digest_of
from ..registry import Files, MethodInfo, PolicyInfo, Unreachable
from ..spec import BadInput
from . import wire
from .convention import WireConvention, named_convention

SCHEMES = ("ws://", "wss://")
TOKEN = "REPLAN_TOKEN"
"""Environment variable with the token of a server: a name is stored in results, so a token does not belong there."""

CONNECT_S = 10
ANSWER_S = 120  # a first round may compile
LONGEST = 300  # characters of a server's own text that a message quotes
MOST_ACTIONS = 1_000_000  # in what a server counts: windows and drafts
CODE = ("replan.policies.planner", *(f"replan.eval.remote.{part}" for part in ("client", "convention", "wire")))


class ServerError(RuntimeError):
    """The server answered with an error, which is the policy's."""


class Address:
    """What ``ws://HOST:PORT[:convention=NAME|FILE.toml]`` means.

    Args:
        name: The policy as the user wrote it.

    Attributes:
        url: Where the server is.
        convention: What it expects in observations; None for the environment's own keys, or what the server says.

    Raises:
        BadInput: It is no such address, or there is no such convention.
    """

    def __init__(self, name: str) -> None:
        self.url, _, convention = name.partition(":convention=")
        try:
            parts = urlsplit(self.url)
            usable = bool(parts.hostname) and parts.port is not None and not (parts.query or parts.fragment)
        except ValueError:
            parts, usable = None, False
        if not usable:
            raise BadInput(f"{name!r} is no address of a policy server; write ws://HOST:PORT")
        if parts is not None and (parts.username or parts.password):
            raise BadInput(f"an address is stored in results; put the token into ${TOKEN}, not into --policy")
        wire.require()
        self.convention: WireConvention | None = named_convention(convention) if convention else None


class Server:
    """A connection to a policy server.

    Args:
        url: Where it is.

    Attributes:
        metadata: What it says about itself when a client connects.

    Raises:
        Unreachable: Nothing answers there, or not in this protocol, or it refuses the token.
    """

    def __init__(self, url: str) -> None:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        self.url, token = url, os.environ.get(TOKEN)
        self._open = ExitStack()
        try:
            connection = connect(
                url,
                additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                compression=None,
                max_size=wire.MOST_BYTES,
                open_timeout=CONNECT_S,
                ping_interval=None,  # servers whose one thread computes answer no ping meanwhile
                proxy=None,
            )
            self._socket = self._open.enter_context(connection)
        except InvalidStatus as error:
            status = error.response.status_code
            why = f"refuses the token; set ${TOKEN}" if status in (401, 403) else f"answers with HTTP {status}"
            raise Unreachable(f"the server at {url} {why}") from error
        except (OSError, WebSocketException, ValueError) as error:
            raise Unreachable(
                f"no policy server answers at {url} ({_text(error)}); start one, such as replan serve --policy NAME"
            ) from error
        try:
            self.metadata = wire.unpack(self._receive(CONNECT_S))
        except (wire.WireError, ServerError) as error:
            self.close()
            raise Unreachable(f"the server at {url} does not speak openpi's protocol: {error}") from error

    @property
    def about(self) -> Mapping[str, Any]:
        """What ``replan serve`` says about itself; empty for other servers."""
        said = self.metadata.get("replan")
        return said if isinstance(said, dict) else {}

    def ask(self, message: Mapping[str, Any]) -> dict[Any, Any]:
        """Sends a message and returns the answer.

        Raises:
            Unreachable: The connection is lost, the answer takes too long, or a message is too large.
            ServerError: The server reports an error.
            WireError: A message is not one of the protocol.
        """
        from websockets.exceptions import ConnectionClosed

        data = wire.pack(message)
        try:
            self._socket.send(data)
        except ConnectionClosed:
            pass  # what the server said before it closed is still to be read
        return wire.unpack(self._receive(ANSWER_S, len(data)))

    def close(self) -> None:
        """Closes the connection."""
        self._open.close()

    def _receive(self, seconds: float, sent: int = 0) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            answer = self._socket.recv(timeout=seconds)
        except TimeoutError as error:
            self.close()  # a late answer must not be taken for the next one's
            raise Unreachable(f"the server at {self.url} did not answer within {seconds:g} s") from error
        except ConnectionClosed as error:
            raise Unreachable(f"the server at {self.url} {_closing(error, sent)}") from error
        if isinstance(answer, str):
            lines = answer.strip().splitlines() or ["an error without a text"]  # openpi's sends a traceback
            raise ServerError(f"the server at {self.url} reports: {lines[-1][:LONGEST]}")
        return answer


class RemotePolicy:
    """Describes a policy on a server and connects to it; see :class:`~replan.eval.registry.Registry`.

    Args:
        name: The policy as the user wrote it.

    Raises:
        BadInput: The name is no address.
    """

    def __init__(self, name: str) -> None:
        self._name, self._address = name, Address(name)

    def policy(self) -> PolicyInfo:
        """Describes the policy.

        Raises:
            Unreachable: The server does not answer.
        """
        server = self._server()
        about, convention = server.about, self._address.convention
        suites = about.get("suites")
        return PolicyInfo(
            files=_identity(server.metadata, server.url),
            marks=tuple(_marks(about)),
            trained_on=tuple(_texts(suites)) if isinstance(suites, list) else None,
            code=source.digest(source.named(*CODE)),
            incompatibilities=lambda observations, _: _lacking(convention, observations),
        )

    def method_of(self) -> str:
        """Returns the method that the server runs.

        Raises:
            Unreachable: The server does not answer.
        """
        return _method(self._server().about)

    def method(self, spec: str) -> MethodInfo:
        """Describes what the server runs: a method acts there, not here.

        Raises:
            BadInput: It is another one than ``spec``.
            Unreachable: The server does not answer.
        """
        about = self._server().about
        runs = _method(about)
        if spec != runs:
            raise BadInput(f"the server {self._address.url} runs {runs!r}; write --method {runs}")
        return MethodInfo(
            activity_counters=tuple(_texts(about.get("activity_counters"))),
            routes=tuple(_texts(about.get("routes"))) or MethodInfo().routes,
            code=source.digest(source.named(*CODE)),
        )

    def agent(self, method: str, dtype: str, device: str) -> RemoteAgent:
        """Connects.

        Raises:
            BadInput: The server has another method or precision.
            Unreachable: The server does not answer.
        """
        self.method(method)
        server = Server(self._address.url)
        runs = server.about.get("dtype", dtype)
        if runs != dtype:
            server.close()
            raise BadInput(f"the server {server.url} computes in {str(runs)[:80]}; write --dtype {str(runs)[:80]}")
        return RemoteAgent(server, self._address.convention)

    def _server(self) -> Server:
        server = Server(self._address.url)
        server.close()
        return server


class RemoteAgent(QueueAgent):
    """Executes the plans of a server.

    Args:
        server: The connection.
        convention: What the server expects in observations; None for the environment's own keys.
    """

    def __init__(self, server: Server, convention: WireConvention | None) -> None:
        super().__init__()
        self._server, self._convention = server, convention
        self._seed: int | None = None
        self._counters: dict[str, float] = {}
        self._lost = False

    def reset(self, seed: int) -> None:
        """Begins an episode; only ``replan serve`` is informed, since openpi's servers know of none.

        Raises:
            Unreachable: The connection was lost, and there is none to be had, or the server has changed.
        """
        super().reset(seed)
        self._seed, self._counters = seed, {}
        if self._lost:
            server = Server(self._server.url)
            if server.metadata != self._server.metadata:
                server.close()
                raise Unreachable(f"the server at {server.url} is not the one that the run began with; start it again")
            self._server, self._lost = server, False

    def counters(self) -> dict[str, float]:
        """Returns what the method on the server did until its last round."""
        return dict(self._counters)

    def _plan(self, observation: Mapping[str, Any], watch: Stopwatch) -> PlannedRound:
        message = dict(self._convention.message(observation) if self._convention else observation)
        if self._seed is not None and self._server.about:
            message["reset"] = self._seed
        try:
            answer = self._server.ask(message)
        except (Unreachable, ServerError):  # openpi's server closes after an error
            self._lost = True
            raise
        self._seed = None
        actions = checked_actions(answer.get("actions"))
        window = len(actions)
        if self._convention and self._convention.replan:
            window = self._convention.replan
            actions = actions[:window]
        total_ns = watch.read()[0]
        server_ns = _took(answer)
        planned = PlannedRound(actions, window, cpu_ns=total_ns)  # as far as is known, none of it was waiting
        if server_ns is None:
            planned.stages_ns = {"server and transport": total_ns}
        else:
            server_ns = min(server_ns, total_ns)
            planned.stages_ns = {"server": server_ns, "transport": total_ns - server_ns}
        if "replan" in answer:
            try:
                self._counters = _take(answer["replan"], planned)
            except ValueError as error:
                raise ServerError(f"the server at {self._server.url} reports {error}") from error
        return planned


def _identity(metadata: Mapping[Any, Any], url: str) -> Files:
    """Stands for the files of a policy that only its server has: what the server says about itself, and where it is."""
    said = metadata.get("replan")
    known = isinstance(said, dict) and "identity" in said
    return Files(known={url: digest_of(repr(said) if known else [url, repr(sorted(metadata.items(), key=repr))])})


def _took(answer: Mapping[Any, Any]) -> int | None:
    """Returns the nanoseconds that a server says it took: for all, or else for its policy alone."""
    for timing in ("server_timing", "policy_timing"):
        said = answer.get(timing)
        took = _ns(said.get("infer_ms")) if isinstance(said, dict) else None
        if took is not None:
            return took
    return None


def _ns(ms: Any) -> int | None:
    usable = isinstance(ms, (int, float)) and not isinstance(ms, bool) and math.isfinite(ms) and 0 <= ms < 1e9
    return int(ms * 1e6) if usable else None


def _method(about: Mapping[str, Any]) -> str:
    return str(about.get("method", ALONE))[:80]


def _marks(about: Mapping[str, Any]) -> list[Mark]:
    if "policy" not in about:
        return [Mark("remote", "a server whose weights, device and noise are not known computed the actions")]
    where = f"{str(about['policy'])[:LONGEST]} was computed by a server on {str(about.get('device'))[:LONGEST]}"
    return [Mark("remote", where), *map(Mark.parse, _texts(about.get("marks")))]


def _lacking(convention: WireConvention | None, observations: Any) -> list[str]:
    offered = getattr(observations, "spaces", {})
    needed = [*convention.cameras.values(), "state", "instruction"] if convention else []
    return [f"the suite has no {key!r}, which the convention sends, but {sorted(offered)}" for key in needed
            if key not in offered]  # fmt: skip


def _texts(values: Any) -> list[str]:
    return [str(value)[:LONGEST] for value in values[:100]] if isinstance(values, list) else []


def _take(said: Any, planned: PlannedRound) -> dict[str, float]:
    """Puts into a round what ``replan serve`` says about it; returns the counters.

    Raises:
        ValueError: Something is of another type or out of range: a result must not rest on it.
    """
    if not isinstance(said, dict):
        raise ValueError(f"replan={_shown(said)}, which is no table")
    if not isinstance(said.get("route", ""), str):
        raise ValueError(f"route={_shown(said['route'])}, which is no text")
    cpu_ms = said.get("cpu_ms", 0.0)
    if (cpu_ns := _ns(cpu_ms)) is None:
        raise ValueError(f"cpu_ms={_shown(cpu_ms)}, which is no number of milliseconds")
    counts = {name: said.get(name) for name in ("window", "accepted", "drafted")}
    for name, count in counts.items():
        if count is not None and (type(count) is not int or not 0 <= count <= MOST_ACTIONS):
            raise ValueError(f"{name}={_shown(count)}, which is no number of actions")
    accepted, drafted = counts["accepted"], counts["drafted"]
    if (accepted is None) != (drafted is None) or (accepted or 0) > (drafted or 0):
        raise ValueError(f"accepted={accepted} of drafted={drafted}")
    planned.route, planned.cpu_ns = said.get("route", planned.route), cpu_ns
    planned.window = planned.window if counts["window"] is None else counts["window"]
    planned.accepted, planned.drafted = accepted, drafted
    planned.extra = _numbers(said, "extra")
    return _numbers(said, "counters")


def _numbers(said: Mapping[str, Any], name: str) -> dict[str, float]:
    values = said.get(name, {})
    if not isinstance(values, dict):
        raise ValueError(f"{name}={_shown(values)}, which is no table")
    for key, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not isinstance(key, str) or not number:
            raise ValueError(f"{name}: {_shown(key)}={_shown(value)}, which is no finite number under a name")
    return {key: float(value) for key, value in values.items()}


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _closing(error: Any, sent: int) -> str:
    """Says why a connection was closed, as the end of a sentence."""
    if error.sent is not None and error.sent.code == 1009 and not error.rcvd_then_sent:
        return f"sends a message of more than {wire.MOST_BYTES} bytes, which is refused"
    if error.rcvd is not None and error.rcvd.code == 1009:
        return f"refuses a message of {sent} bytes as too large; allow it there, or send smaller images"
    if error.rcvd is not None and error.rcvd.reason:
        return f"closed the connection: {error.rcvd.reason[:LONGEST]}"
    return "closed the connection before it answered"


def _text(error: BaseException) -> str:
    return str(error)[:LONGEST] or type(error).__name__
