"""``replan eval``: runs an evaluation, or resumes it, and shows the table."""

from __future__ import annotations

import datetime
import shlex
from typing import TYPE_CHECKING, Any

import click

from ..spec import CLOCKS, DEVICES, DTYPES, BadInput, make_spec, read_toml, table_of_settings
from . import CommandFailed, error_lines, json_option, rows_option, show
from .policy import published_options, with_options

if TYPE_CHECKING:
    from ..registry import Registry
    from ..spec import Spec

MANY = 10_000  # episodes that take a moment to be listed, and hours to be played


@click.command("eval")
@click.option("--spec", "file", metavar="FILE.toml", help="Read the options below from a file; flags win over it.")
@click.option("--suite", metavar="NAME,...", help="Suites; `replan envs` lists them.  [conveyor]")
@click.option("--task", metavar="NAME,...", help="Tasks to keep.  [all]")
@click.option(
    "--policy", metavar="NAME|PATH", help="Bundled policy, checkpoint, or published folder.  [the suite's own]"
)
@published_options
@click.option("--method", metavar="METHOD,...", help="Methods, such as dense,flash:delta=0.1,flash+dp_cache.  [dense]")
@click.option("--episodes", type=int, help="Episodes per suite, combination of settings and method.  [50]")
@click.option("--seed", type=int, help="Seed of the cells.  [0]")
@click.option(
    "--compared", type=int, metavar="N", help="Compare one round in N with dense, for the action error; 0: none.  [5]"
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE[,VALUE]...", help="Fix a setting of the suite: speed=10,15."
)
@click.option("--clock", metavar="|".join(CLOCKS), help="Whether the environment waits for the policy.  [sync]")
@click.option(
    "--latency",
    metavar="SOURCE",
    help="Under realtime: zero, fixed:58ms, profile:NAME, measured, trace:FILE or resample:RUN.  [measured]",
)
@click.option("--dtype", metavar="|".join(DTYPES), help="Precision of the policy.  [float32]")
@click.option("--device", metavar="|".join(DEVICES), help="Where the policy runs; auto: CUDA if there is one.  [auto]")
@click.option("--workers", type=int, help="Worker processes.  [1]")
@click.option("--timeout", type=float, metavar="SECONDS", help="Time after which an episode counts as hung.  [300]")
@click.option(
    "--keep-actions/--no-keep-actions",
    default=None,
    help="Whether to store the actions, which `replan video` shows again.  [keep]",
)
@click.option("--out", metavar="DIR", help="Run directory. An interrupted run is resumed by the same command.")
@rows_option
@click.option("--quiet", "-q", is_flag=True, help="Say nothing on stderr but faults and errors.")
@json_option
@click.pass_obj
def evaluate_command(
    arguments: list[str], file: str | None, settings: tuple[str, ...], episode_rows: bool, quiet: bool, **flags: Any
) -> dict[str, Any]:
    """Run methods on the same episodes and compare them."""
    from ..registry import Registry

    registry = Registry()
    plain = read_toml(file) if file else {}
    said = flags.pop("convention"), flags.pop("tokenizer")
    plain |= {name: value for name, value in flags.items() if value is not None}
    if said != (None, None):
        plain["policy"] = with_options(flags["policy"], *said)
    if settings:
        plain["set"] = {**table_of_settings(plain.get("set", {})), **_pairs(settings)}
    spec = make_spec(plain, registry.suites())
    if spec.size > MANY and not quiet:
        click.echo(f"planning {spec.size} episodes; at a second each they take {spec.size / 3600:.0f} hours", err=True)
    return run_and_show(spec, registry, arguments, quiet=quiet, episode_rows=episode_rows)


def run_and_show(
    spec: Spec, registry: Registry, arguments: list[str], *, quiet: bool = False, episode_rows: bool = False
) -> dict[str, Any]:
    """Runs an evaluation and shows its board.

    Args:
        spec: The evaluation.
        registry: Where suites, policies and methods come from.
        arguments: The command line, for the record.
        quiet: Whether to say nothing of the progress.
        episode_rows: Whether the result has all episodes, too.

    Raises:
        CommandFailed: No episode could be measured.
    """
    from ...results import leaderboard, tables
    from ...results.export import episode_records
    from ...results.marks import RANK
    from ...results.store import Store
    from ..evaluate import evaluate

    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")  # noqa: TID251
    command = shlex.join(["replan", *arguments])
    tally = evaluate(spec, registry, command=command, started=started, progress=not quiet)
    with Store.open(spec.out) as store:
        if not tally.episodes:
            raise CommandFailed(f"no episode could be measured:\n{error_lines([store])}")
        rows = leaderboard.board([store])
        each = {"rows": leaderboard.to_json(episode_records([(spec.out, store)]))} if episode_rows else {}
    show(tables.text(rows))
    return {"out": spec.out, **tally._asdict(), "board": leaderboard.to_json(rows), "rank_rule": RANK, **each}


def _pairs(settings: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"--set {setting!r} has no value; write --set {name or 'NAME'}=VALUE")
        name = name.strip()
        pairs[name] = f"{pairs[name]},{value}" if name in pairs else value
    return pairs
