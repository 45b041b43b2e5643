"""``replan policy``: what a policy's files say, as an evaluation reads them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..spec import BadInput, unknown
from . import CommandFailed, json_option, show

if TYPE_CHECKING:
    from ..registry import Registry

MOST = 60  # characters of a value


def published_options(command: Any) -> Any:
    """Adds what may be said about a published folder."""
    for option in (
        click.option(
            "--tokenizer", metavar="FILE", help="Tokenizer of a published folder.  [in it, $REPLAN_TOKENIZER]"
        ),
        click.option(
            "--convention", metavar="NAME|FILE.toml", help="What a published folder does not say: libero, robotwin."
        ),
    ):
        command = option(command)
    return command


def with_options(policy: str | None, convention: str | None, tokenizer: str | None) -> str | None:
    """Returns a policy with what was said about it behind its name.

    Raises:
        BadInput: Something was said about no policy, or an option contains a colon.
    """
    given = {key: value for key, value in (("convention", convention), ("tokenizer", tokenizer)) if value is not None}
    if not given:
        return policy
    if not policy:
        raise BadInput(f"--{next(iter(given))} is about a published folder; name it with --policy DIR")
    for key, value in given.items():
        if not value.strip() or ":" in value:
            raise BadInput(f"--{key} {value!r} must be a name or a path without colons")
    return ":".join([policy, *(f"{key}={value}" for key, value in given.items())])


@click.group()
def policy() -> None:
    """Look at policies."""


@policy.command()
@click.argument("name", metavar="NAME|PATH")
@published_options
@json_option
def inspect(name: str, convention: str | None, tokenizer: str | None) -> dict[str, Any]:
    """Show what was recognised in a checkpoint or a published folder; no weights are loaded."""
    from tabulate import tabulate

    from ...policies.checkpoint import files_hash
    from ...policies.policy import open_policy

    stored = open_policy(with_options(name, convention, tokenizer) or name)
    about = {
        "layout": stored.layout,
        "family": stored.family.kind,
        "files": [file.name for file in stored.files],
        "sha256": files_hash(stored.files),
        "model": _plain(stored.config),
        "conventions": _plain(stored.processor),
        "prompt": _prompt(stored.processor),
        "card": stored.card,
    }
    rows = [
        ("" if number else part, key, _short(value))
        for part, values in about.items()
        for number, (key, value) in enumerate(values.items() if isinstance(values, dict) else [("", values)])
    ]
    show(tabulate(rows, tablefmt="plain"))
    return about


@policy.command()
@click.argument("name", metavar="NAME|PATH|ws://HOST:PORT")
@click.option("--suite", metavar="NAME", help="Suite that the policy is for.  [the first that it was trained on]")
@click.option("--method", metavar="METHOD", help="The method that it runs with.  [a server's own, else dense]")
@published_options
@json_option
def check(
    name: str, suite: str | None, method: str | None, convention: str | None, tokenizer: str | None
) -> dict[str, Any]:
    """Check that a policy does what an evaluation relies on; it plays some seconds of episodes."""
    from ..check import BrokenPromise, check_policy
    from ..registry import Registry

    registry = Registry()
    name = with_options(name, convention, tokenizer) or name
    suite, method = suite or _suite(registry, name), method or registry.method_of(name)
    if suite not in registry.suites():
        raise unknown("suite", suite, registry.suites())
    try:
        check_policy(name, suite, method=method, registry=registry)
    except BrokenPromise as error:
        raise CommandFailed(str(error)) from error
    show(f"policy {name!r} keeps the contract in {suite}")
    return {"policy": name, "suite": suite, "method": method}


def _suite(registry: Registry, policy: str) -> str:
    """Returns the suite that a policy was made for.

    Raises:
        BadInput: Neither its card nor a suite says so.
    """
    trained_on = registry.policy(policy).trained_on or ()
    own = [suite.name for suite in registry.suites().values() if suite.policy == policy]
    for name in (*trained_on, *own):
        if name in registry.suites():
            return name
    raise BadInput(f"nothing says which suite {policy!r} is for; name it with --suite")


def _prompt(processor: Any) -> str:
    """Returns an example of the text that the model reads, with a state in the middle of its range."""
    import torch

    from ...policies.standardised import Standardised

    if not isinstance(processor, Standardised):
        return ""
    return processor.prompt("put the cup on the plate", torch.zeros(len(processor.state_mean)))


def _plain(values: Any) -> dict[str, Any]:
    return {
        key: value if isinstance(value, (int, float, str, bool, list, tuple)) else str(value)
        for key, value in asdict(values).items()
    }


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in value)
    text = repr(value) if isinstance(value, str) and "\n" in value else str(value)
    return text if len(text) <= MOST else f"{text[:MOST]}..."
