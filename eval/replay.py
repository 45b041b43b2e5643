"""A run played again under other latencies: its cells, policies and methods, in a world that waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .clock import Measured, Trace, parse_latency
from .spec import BadInput, Spec, make_spec, unknown
from .verify import check_weights

if TYPE_CHECKING:
    from ..results.store import Store
    from .registry import Registry


def replay_spec(
    store: Store,
    registry: Registry,
    *,
    latency: str,
    out: str,
    methods: Sequence[str] = (),
    device: str = "auto",
    workers: int = 1,
) -> Spec:
    """Returns the specification of a run's episodes under another latency.

    Args:
        store: The run.
        registry: Where suites, policies and methods come from.
        latency: Latency source; see :func:`.clock.parse_latency`.
        out: Run directory of the new episodes.
        methods: Methods of the run; all of them if empty.
        device: Where the policies run.
        workers: Worker processes.

    Raises:
        BadInput: The latency belongs to the episodes in which it is measured, the run has no such method or no episode,
            or a policy is not the run's.
        StoreError: The run cannot be read.
    """
    if isinstance(parse_latency(latency), (Measured, Trace)):
        raise BadInput(
            f"latency {latency!r} belongs to the episodes that it is measured in; write resample:RUN to give it to "
            "others, or `replan eval`"
        )
    planned = dict(store.run.spec)
    for name in methods:
        if name not in planned["method"]:
            raise unknown("method of this run", name, planned["method"])
    policies = {row.suite: row for row in store.episodes()}
    if not policies:
        raise BadInput(f"{store.path.parent} holds no episode yet; give a run that has some")
    for row in policies.values():
        check_weights(row, registry.policy(row.policy).files.digest)
    plain = {
        **planned,
        "policy": {suite: row.policy for suite, row in policies.items()},
        "method": list(methods) or planned["method"],
        "clock": "realtime",
        "latency": latency,
        "device": device,
        "workers": workers,
        "out": out,
    }
    return make_spec(plain, registry.suites())
