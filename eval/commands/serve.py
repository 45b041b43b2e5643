"""``replan serve``: a policy with a method, for clients of openpi's protocol."""

from __future__ import annotations

import ipaddress
from typing import Any

import click

from ..spec import DEVICES, DTYPES, BadInput
from . import json_option


@click.command("serve")
@click.option("--policy", required=True, metavar="NAME|PATH", help="Policy, as in `replan eval`.")
@click.option("--method", default="dense", show_default=True, metavar="METHOD", help="The method that it runs with.")
@click.option("--convention", default="", metavar="NAME|FILE.toml", help="How messages name observations.  [as suites]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--token", envvar="REPLAN_TOKEN", help="What clients must know.  [$REPLAN_TOKEN]")
@click.option(
    "--max-bytes", type=click.IntRange(1024, 1 << 30), default=16 << 20, show_default=True, help="Largest message."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Precision.")
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where it runs.")
@json_option
def serve_command(
    policy: str,
    method: str,
    convention: str,
    host: str,
    port: int,
    token: str | None,
    max_bytes: int,
    dtype: str,
    device: str,
) -> dict[str, Any]:
    """Serve a policy over a WebSocket, in openpi's protocol. Ctrl-C ends it."""
    from .. import provenance
    from ..evaluate import resolved_device
    from ..registry import Registry
    from ..remote import wire
    from ..remote.server import Service, serve

    wire.require()
    if token == "":
        raise BadInput("the token is empty; leave --token out, or write one")
    if token is None and not _is_loopback(host):
        raise BadInput(f"everybody who reaches {host} could use the policy; add --token, or serve on 127.0.0.1")
    device = resolved_device(device, provenance.accelerator())
    service = Service(Registry(), policy, method, dtype, device, convention)
    try:
        server = serve(service, host, port, token, max_bytes)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # Python adds the address again
        raise BadInput(
            f"cannot listen on {host}:{port}: {why}; name another --port (0 takes a free one) or --host"
        ) from error
    address = f"ws://{f'[{host}]' if ':' in host else host}:{server.socket.getsockname()[1]}"
    click.echo(f"{policy} with {method} at {address}; end with Ctrl-C", err=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended", err=True)
    return {"address": address}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
