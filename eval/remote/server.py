"""``replan serve``: any policy with any method, in openpi's protocol.

A connection has an agent of its own while it lasts, which plays one episode until a message has ``reset``. Rounds
of several connections run one after the other, so that the times they report are those of a machine alone.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import address as digest_of
from ..rows import finite, text_of
from ..spec import BadInput
from . import wire
from .convention import named_convention, plain_observation

if TYPE_CHECKING:
    from ..registry import Agent, MethodInfo, PolicyInfo, Registry

PROTOCOL = 1  # of what replan's own client and server say beyond openpi's messages
MOST_CLIENTS = 16  # each has a thread and an agent
LARGEST_SEED = 2**63 - 1
LARGEST_CHUNK = 10_000  # actions


class RequestError(ValueError):
    """A message that cannot be answered. The agent has not seen it."""


class Service:
    """What a server does with connections and messages.

    Args:
        registry: Where the policy comes from.
        policy: Its name.
        method: The method that it runs with.
        dtype: ``float32`` or ``bfloat16``.
        device: ``cpu`` or ``cuda``.
        convention: How messages name what is in an observation; empty for the environment's own keys.

    Raises:
        ValueError: There is no such policy, method or convention, the method does not fit the policy, or it learns
            across episodes.
    """

    def __init__(
        self,
        registry: Registry,
        policy: str,
        method: str = "dense",
        dtype: str = "float32",
        device: str = "cpu",
        convention: str = "",
    ) -> None:
        self._make = lambda: registry.agent(policy, method, dtype, device)
        self._convention = named_convention(convention) if convention else None
        about, runs = registry.policy(policy), registry.method(method, policy)
        if runs.ordered:
            raise BadInput(
                f"method {method!r} learns from how episodes end, which a server does not know; serve another --method"
            )
        self.metadata = {"replan": _about(about, runs, policy, method, dtype, device, convention)}
        self._turn = threading.Lock()
        self._clients = threading.BoundedSemaphore(MOST_CLIENTS)
        self._idle: list[Agent] = [self._make()]  # so that what cannot be served is known now

    def handle(self, connection: Any) -> None:
        """Answers the messages of a connection until it is closed."""
        from websockets.exceptions import ConnectionClosed

        if not self._clients.acquire(blocking=False):
            connection.close(1013, f"{MOST_CLIENTS} clients are connected already")
            return
        agent: Agent | None = None
        try:
            connection.send(wire.pack(self.metadata))
            for message in connection:
                agent = agent or self._begin()
                try:
                    answer: bytes | str = wire.pack(self._answer(agent, message))
                except RequestError as error:
                    answer = str(error)
                except BaseException as error:
                    agent = None  # whose state is anybody's guess now
                    connection.send(text_of(error))
                    connection.close(1011, "the policy failed; connect again")
                    return
                connection.send(answer)
        except ConnectionClosed:
            pass
        finally:
            if agent is not None:
                self._idle.append(agent)
            self._clients.release()

    def _begin(self) -> Agent:
        """Returns an agent at the beginning of an episode."""
        with self._turn:
            agent = self._idle.pop() if self._idle else self._make()
            agent.reset(0)
            return agent

    def _answer(self, agent: Agent, data: bytes | str) -> dict[str, Any]:
        try:
            message = wire.unpack(data)
        except wire.WireError as error:
            raise RequestError(str(error)) from error
        seed = message.pop("reset", None)
        if seed is not None and not (type(seed) is int and 0 <= seed <= LARGEST_SEED):
            raise RequestError(f"reset must be a seed from 0 to {LARGEST_SEED}, got {str(seed)[:80]}")
        observation = self._observation(message) if message else None
        with self._turn:
            if seed is not None:
                agent.reset(seed)
            return {"reset": seed} if observation is None else _plan(agent, observation)

    def _observation(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._convention.observation(message) if self._convention else plain_observation(message)
        except ValueError as error:
            raise RequestError(str(error)) from error


def serve(service: Service, host: str, port: int, token: str | None = None, max_bytes: int = wire.MOST_BYTES) -> Any:
    """Returns a server that listens; ``serve_forever`` runs it, ``shutdown`` ends that.

    Args:
        service: What answers.
        host: Address to listen on.
        port: Port; 0 takes a free one (``server.socket`` says which).
        token: What clients must give as ``Authorization: Api-Key TOKEN``; None lets all in.
        max_bytes: Largest message.

    Raises:
        OSError: The address cannot be used.
    """
    from websockets.sync.server import serve as listen

    def admitted(connection: Any, request: Any) -> Any:
        if request.path == "/healthz":  # as openpi's server
            return connection.respond(HTTPStatus.OK, "OK\n")
        given = request.headers.get("Authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Api-Key {token}".encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
        return None

    return listen(
        service.handle,
        host,
        port,
        origins=[None],  # no page in a browser may connect to a server of this machine
        process_request=admitted,
        compression=None,
        max_size=max_bytes,
    )


def _plan(agent: Agent, observation: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a round and returns all actions that the agent would execute before the next one."""
    while not agent.needs_observation:  # a plan that a failure has left
        agent.act({})
    actions, made = [agent.act(observation)], agent.round
    while not agent.needs_observation and len(actions) < LARGEST_CHUNK:
        actions.append(agent.act({}))
    if made is None:
        raise RuntimeError("the agent acted without a round")
    return {
        "actions": np.stack(actions).astype(np.float32),
        "server_timing": {"infer_ms": made.host_ns / 1e6},
        "policy_timing": {"infer_ms": made.host_ns / 1e6},
        "replan": {
            "route": made.route,
            "window": int(made.window),
            "accepted": None if made.accepted is None else int(made.accepted),
            "drafted": None if made.drafted is None else int(made.drafted),
            "cpu_ms": made.cpu_ns / 1e6,
            "stages_ms": {stage: ns / 1e6 for stage, ns in made.stages_ns.items()},
            "extra": finite(made.extra),
            "counters": finite(agent.counters()),
        },
    }


def _about(
    policy: PolicyInfo, runs: MethodInfo, name: str, method: str, dtype: str, device: str, convention: str
) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "policy": name,
        "method": method,
        "dtype": dtype,
        "device": device,
        "convention": convention,
        "identity": digest_of([policy.files.digest, runs.files.digest, policy.code, runs.code]),
        "routes": list(runs.routes),
        "activity_counters": list(runs.activity_counters),
        "marks": [str(mark) for mark in policy.marks],
        "suites": None if policy.trained_on is None else list(policy.trained_on),
    }
