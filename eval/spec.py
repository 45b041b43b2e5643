"""The specification of one evaluation, checked once and never changed afterwards."""

from __future__ import annotations

import difflib
import math
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from ..envs import Suite

CLOCKS = ("sync", "realtime")
DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
MOST_TOML = 1 << 16  # bytes of a specification or of profiles
MOST_DOTS = 1_000  # in a line of it: a key with more parts takes the parser minutes
# Episodes of one run. At a second each they take two days; so a longer list is a typing mistake, or should be several
# runs with seeds of their own, each of which can be shown and resumed alone.
MOST_EPISODES = 200_000
LONGEST_TIMEOUT = 10**6  # seconds: eleven days

_shown = reprlib.Repr()  # of values in messages: a file may hold any
_shown.maxstring = _shown.maxother = _shown.maxlong = 100


class RunStopped(Exception):
    """A run cannot go on, for a reason that is not bad input. The message is one sentence; the rows are kept."""


class BadInput(ValueError):
    """An input cannot be used; the message names the value and says what to write instead."""


def unknown(kind: str, value: object, names: Iterable[str]) -> BadInput:
    """Returns the error for a name that does not exist, with the names that look like it."""
    names = sorted(names)
    near = difflib.get_close_matches(str(value)[:100], names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names) or 'none'}"
    if kind == "suite":
        from ..envs import UNAVAILABLE

        hint = "; ".join([hint, *UNAVAILABLE.values()])
    return BadInput(f"unknown {kind} {_shown.repr(value)}; {hint}")


@dataclass(frozen=True)
class Spec:
    """One evaluation. Field names are the command line's flags and the keys of a TOML file.

    Attributes:
        out: Run directory. The same specification with the same directory resumes.
        suite: Suites to run.
        task: Tasks to keep; empty for all.
        policy: For each suite, the name of a bundled policy or the path of a checkpoint.
        method: Methods as written, such as ``flash:delta=0.1``; all of them run on the same cells.
        episodes: Episodes for each suite, each combination of settings and each method.
        seed: Seed of the cells.
        compared: On average one round in this many of each method is compared with dense, which costs a dense round
            outside of all durations, for the action error; 0 for none.
        set: Suite settings to fix, each to one or several values; the combinations are run side by side.
        clock: ``sync`` (the environment waits for the policy) or ``realtime`` (it does not).
        latency: Latency source; see :func:`replan.eval.clock.parse_latency`.
        dtype: Precision of the policy: ``float32`` or ``bfloat16``.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where there is a device, resolved before anything is run.
        workers: Worker processes.
        timeout: Seconds after which an episode counts as hung, loading included.
        keep_actions: Whether the store keeps the executed actions, from which an episode can be shown again.
    """

    out: str
    suite: tuple[str, ...] = ("conveyor",)
    task: tuple[str, ...] = ()
    policy: Mapping[str, str] = field(default_factory=dict)
    method: tuple[str, ...] = ("dense",)
    episodes: int = 50
    seed: int = 0
    compared: int = 5
    set: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    clock: str = "sync"
    latency: str = ""
    dtype: str = "float32"
    device: str = "auto"
    workers: int = 1
    timeout: float = 300.0
    keep_actions: bool = True

    def __post_init__(self) -> None:
        """Gives the latency its default."""
        if not self.latency:
            object.__setattr__(self, "latency", "zero" if self.clock == "sync" else "measured")

    @property
    def conditions(self) -> int:
        """Combinations of settings."""
        return math.prod(map(len, self.set.values()))

    @property
    def size(self) -> int:
        """Episodes of the whole run."""
        return self.episodes * len(self.suite) * len(self.method) * self.conditions

    @property
    def measures_latency(self) -> bool:
        """Whether the world is given the latencies that are measured, so that no episode comes out the same twice."""
        return self.latency == "measured"

    def as_plain(self) -> dict[str, Any]:
        """Returns the specification as JSON values, the form in which a run stores it."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        policies = set(self.policy.values())
        return {
            **plain,
            "policy": policies.pop() if len(policies) == 1 else dict(self.policy),
            "set": {name: list(values) for name, values in self.set.items()},
        }


def read_toml(path: str | Path) -> dict[str, Any]:
    """Returns the fields written in a TOML specification, unchecked.

    Raises:
        BadInput: There is no such file, or it is not TOML.
    """
    content = read_input(path, "specification", MOST_TOML)
    try:
        if any(line.count(b".") > MOST_DOTS for line in content.splitlines()):
            raise RecursionError
        return tomllib.loads(content.decode())
    except RecursionError as error:
        raise BadInput(f"{str(path)!r} cannot be read: its values are nested too deeply") from error
    except ValueError as error:
        raise BadInput(f"{str(path)!r} is not TOML: {error}") from error


def read_input(path: str | Path, what: str, most: int) -> bytes:
    """Returns the content of a file that a user named, of at most ``most`` bytes: some devices have no end.

    Raises:
        BadInput: There is no such file, it cannot be read, or it is longer.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"cannot read the {what} {str(path)[:200]!r}: {why}") from error
    if len(content) > most:
        raise BadInput(f"cannot read the {what} {str(path)!r}: it is longer than {most} bytes")
    return content


def make_spec(plain: Mapping[str, Any], suites: Mapping[str, Suite]) -> Spec:
    """Checks plain fields, from flags or from a TOML file, against the suites that exist.

    Args:
        plain: Field name to value. ``suite``, ``task`` and ``method`` may be a list or one string with commas; ``set``
            maps a setting to a value or a list of values; ``policy`` is one for all suites or one per suite, their own
            where it is missing.
        suites: The suites, by name.

    Raises:
        BadInput: A field, suite, task or setting does not exist, or a value has no meaning.
    """
    names = [each.name for each in fields(Spec)]
    for key in plain:
        if key not in names:
            raise unknown("field", key, names)
    if not plain.get("out"):
        raise BadInput("no run directory given; write --out runs/NAME")

    values = dict(plain)
    for key in ("suite", "task", "method"):
        if key in values:
            values[key] = _names(key, values[key])
    for key, least, most in (
        ("episodes", 1, MOST_EPISODES),
        ("workers", 1, 1024),
        ("seed", 0, 2**53),
        ("compared", 0, 1000),
    ):
        if key in values and not (_is_int(values[key]) and least <= values[key] <= most):
            raise BadInput(f"{key} must be a whole number from {least} to {most}, not {_shown.repr(values[key])}")
    if "timeout" in values and not (_is_number(values["timeout"]) and 0 < values["timeout"] <= LONGEST_TIMEOUT):
        raise BadInput(
            f"timeout must be a number of seconds above 0 and up to {LONGEST_TIMEOUT}, "
            f"not {_shown.repr(values['timeout'])}"
        )
    if not isinstance(values.get("keep_actions", True), bool):
        raise BadInput(f"keep_actions must be true or false, not {_shown.repr(values['keep_actions'])}")
    for key in ("out", "clock", "latency", "dtype", "device"):
        if key in values and not _is_text(values[key]):
            raise BadInput(f"{key} must be text, not {_shown.repr(values[key])}")

    spec = Spec(**{**values, "policy": {}, "set": {}})
    if not spec.suite or not spec.method:
        raise BadInput("at least one suite and one method are needed")
    for key, value, choices in (
        ("clock", spec.clock, CLOCKS),
        ("dtype", spec.dtype, DTYPES),
        ("device", spec.device, DEVICES),
    ):
        if value not in choices:
            raise unknown(key, value, choices)
    if spec.clock == "sync" and spec.latency != "zero":
        raise BadInput(f"the sync clock has no latency, so {spec.latency!r} would be ignored; add --clock realtime")
    for name in spec.suite:
        if name not in suites:
            raise unknown("suite", name, suites)
    tasks = {task for name in spec.suite for task in suites[name].tasks}
    for task in spec.task:
        if task not in tasks:
            raise unknown("task", task, tasks)
    chosen = [suites[name] for name in spec.suite]
    policy, settings = _policies(values.get("policy", {}), chosen), _settings(values.get("set", {}), chosen)
    spec = Spec(**{**values, "policy": policy, "set": settings})
    if spec.size > MOST_EPISODES:
        raise BadInput(
            f"{spec.episodes} episodes for each of {len(spec.method)} methods on {len(spec.suite)} suites under "
            f"{spec.conditions} combinations of settings are {spec.size}, more than the {MOST_EPISODES} of one run; "
            "give fewer --episodes, or divide them into runs with different --seed"
        )
    return spec


def _policies(given: Any, suites: Sequence[Suite]) -> dict[str, str]:
    if isinstance(given, Mapping):
        for name in given:
            if name not in [suite.name for suite in suites]:
                raise unknown("suite in policy", name, [suite.name for suite in suites])
        policies = {suite.name: given.get(suite.name, suite.policy) for suite in suites}
    else:
        policies = {suite.name: given for suite in suites}
    for suite, policy in policies.items():
        if policy is None:
            raise BadInput(f"suite {suite!r} has no policy of its own; name one with --policy NAME|PATH")
        if not _is_text(policy):
            raise BadInput(f"policy must be text, or a table of one text per suite, not {_shown.repr(policy)}")
    return policies


def _names(key: str, value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise BadInput(f"{key} must be a name or a list of names, not {_shown.repr(value)}")
    names = tuple(item.strip() for item in items if item.strip())
    for name in names:
        if key == "method" and (not name[0].isalpha() or "=" in name.partition(":")[0]):
            raise BadInput(
                f"{_shown.repr(name)} is not a method: commas separate methods; an option follows ':', and several "
                "values are separated by '/', as in flash:delta=0.1:refresh=4,dp_cache:keep=0/1/2"
            )
        if names.count(name) > 1:
            raise BadInput(f"{key} {name!r} is given twice")
    return names


def table_of_settings(given: Any) -> Mapping[str, Any]:
    """Returns the settings as they were given: name to value, or values.

    Raises:
        BadInput: They are no table.
    """
    if not isinstance(given, Mapping):
        raise BadInput(f"set must be a table such as {{speed = [6, 10]}}, not {_shown.repr(given)}")
    return given


def _settings(given: Any, suites: Sequence[Suite]) -> dict[str, tuple[Any, ...]]:
    settings = {}
    for name, value in table_of_settings(given).items():
        for suite in suites:
            if name not in suite.settings:
                raise unknown(f"{suite.name} setting", name, suite.settings)
        kind, *others = {suite.settings[name] for suite in suites}
        if others:
            types = " and ".join(f"{suite.settings[name].__name__} in {suite.name}" for suite in suites)
            raise BadInput(f"setting {name!r} has several types: {types}; evaluate these suites one by one")
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        converted = tuple(_convert(name, item, kind) for item in items)
        if not converted or len(set(converted)) < len(converted):
            raise BadInput(f"setting {name!r} needs values that differ, not {_shown.repr(value)}")
        settings[name] = converted
    return dict(sorted(settings.items()))


def _convert(name: str, value: Any, kind: type) -> Any:
    """Returns a setting's value in its own type, so that ``10``, ``10.0`` and ``"10"`` address the same cell."""
    try:
        if kind is bool:
            converted: Any = {"true": True, "false": False}[str(value).lower()]
        elif isinstance(value, bool) and kind is not str:
            raise ValueError(value)
        else:
            converted = kind(value.strip() if isinstance(value, str) else value)
            if kind is not str and converted != float(value):
                raise ValueError(value)
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError(value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise BadInput(f"setting {name}={_shown.repr(value)} is not a finite {kind.__name__}") from error
    return converted


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
