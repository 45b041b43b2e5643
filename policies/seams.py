"""The method contract: what an acceleration method may replace in a round, and how several act together.

A method replaces what happens at the seams it claims and leaves the rest dense. Two methods compose exactly when their
claims are disjoint; :class:`Methods` refuses any other pair and names the seam that both claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from .flow import FlowSpec, Schedule
from .model import CONTAINS, DENSE, ROUND_SEAMS, FlowModel, Ops, Seam, Stages
from .policy import Policy
from .round import FULL, Call, Proposal, Start

__all__ = ["Method", "Methods", "Ops", "Seam", "Stages"]


class Method:
    """An acceleration method. This base class claims nothing: it is the dense policy.

    A subclass sets the class attributes and overrides the hook of each seam in ``claims``. Hooks at seams that it does
    not claim are never called; the others (``look``, ``observe_full``, ``idle``, ``end``, ``route``, and the
    ``attended`` tap of its ops) watch, and every method may have them. A method never changes the shared model: no
    hooks inside its modules, no compilation in place.

    Attributes:
        name: What users write in ``--method``.
        claims: Seams whose arithmetic the method replaces.
        activity_counters: Counters each of which has to be above zero over a run; otherwise the method did nothing and
            its row is marked NOT ACTIVE. They may depend on its options.
        routes: Routes that its rounds may take; they may depend on its options.
        requires: Type of context that the model must produce; None if any will do.
        ordered: Whether the method learns across episodes, which may depend on its options. Its episodes then run in
            one fixed order in one process.
        limit: Options with which it is exactly dense, as users read them; empty where there are none.
        papers: arXiv identifiers of what it follows.
    """

    name: ClassVar[str] = "dense"
    claims: ClassVar[frozenset[Seam]] = frozenset()
    activity_counters: tuple[str, ...] = ()
    routes: tuple[str, ...] = (FULL,)
    requires: ClassVar[type | None] = None
    ordered: bool = False
    limit: ClassVar[str] = ""
    papers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def misfit(cls, model: type[FlowModel]) -> str | None:
        """Returns why the method cannot work with models of a type, besides ``claims`` and ``requires``; None if none.

        The text goes on after a colon.
        """
        return None

    def files(self, policy: Path) -> list[Path]:
        """Returns the files that the method needs besides the policy at this path, such as a draft or a library.

        Their contents are part of a measurement's address.
        """
        return []

    def make_files(self, policy: Policy) -> None:
        """Writes untrained stand-ins for ``files``, with which the speed of the method alone can be measured."""

    def first_observations(self, policy: Path) -> frozenset[str]:
        """Returns digests of the first observations of episodes that the files hold, as rows of results have them.

        An evaluation measures no episode that begins like one of them.
        """
        return frozenset()

    def attach(self, policy: Policy) -> None:
        """Prepares what depends on the policy: tables, buffers, a draft. Called once.

        Raises:
            ValueError: The method cannot work with this policy.
        """

    def begin(self) -> None:
        """Forgets the last episode (an ``ordered`` method keeps what it has learned). Called before each episode."""

    def end(self, success: bool) -> None:
        """Tap: the episode is over."""

    def counters(self) -> dict[str, float]:
        """Returns what the method did since ``begin``, by name."""
        return {}

    def look(self, call: Call) -> None:
        """Tap: the observation is there, and nothing has run. Who reads ``call.prefix`` lets it be encoded."""

    def observe_full(self, call: Call) -> None:
        """Tap: the full path of this round has run; ``call.context`` and ``call.chunk`` are set."""

    def idle(self, budget_ns: int) -> None:
        """Tap: the robot moves for so many nanoseconds, and until then the accelerator is free."""

    def route(self, call: Call) -> str | None:
        """Returns the name of what the method made of the full path, or None if it has none to give.

        Where several methods answer, the round's route is their names in the methods' order, joined by ``+``.
        """
        return None

    def propose(self, call: Call) -> Proposal | None:
        """ROUND: a chunk that makes the full path unnecessary, or None to let the full path run."""
        raise NotImplementedError

    def window(self, window: int) -> int:
        """WINDOW: how many actions are executed before the next round. Asked once, after ``attach``.

        Args:
            window: What it would be without the method.
        """
        raise NotImplementedError

    def context(self, call: Call) -> Any | None:
        """CONTEXT: a context that ``prefill`` returned in an earlier round, or None to let it run in this one."""
        raise NotImplementedError

    def init(self, call: Call, flow: FlowSpec) -> Start | None:
        """INIT: where denoising starts; None is the noise."""
        raise NotImplementedError

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """SCHEDULE: the times at which the flow is integrated, and which of their predictions are computed or given."""
        raise NotImplementedError

    def prediction(self, call: Call, x: Tensor, time: float, prediction: Tensor) -> Tensor:
        """PREDICTION: what the integrator uses in place of a prediction [1, H, A] at x and a flow time."""
        raise NotImplementedError

    def prefill_ops(self) -> Ops:
        """PREFILL_ROWS, PREFILL_FFN: answers to the prefill's walk. Asked once, after ``attach``."""
        return DENSE

    def step_ops(self) -> Ops:
        """STEP_ROWS, STEP_FFN: answers to the walk of each denoising step. Asked once, after ``attach``."""
        return DENSE

    def stages(self, model: FlowModel, prefill_ops: Ops, step_ops: Ops) -> Stages:
        """BACKEND: the model's stages as callables that run in another way. Asked once, after ``attach``.

        Args:
            model: The shared model, which stays as it is.
            prefill_ops: The ops that every prefill of this agent will be given.
            step_ops: The ops that every step of this agent will be given, but for verification, which has dense ones.
        """
        raise NotImplementedError


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Turns whatever the block raises into a ValueError: a method may be anybody's code.

    Args:
        what: What failed, as the beginning of a sentence; a ValueError of the block is a sentence already.

    Raises:
        ValueError: The block raises anything but an interrupt from the keyboard.
    """
    try:
        yield
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: its code raises {type(error).__name__}: {error}") from error


def _check_declarations(method: Method) -> None:
    """Raises ValueError unless a method declares itself in the types that readers of its attributes expect."""
    texts = {"activity_counters": method.activity_counters, "routes": method.routes}
    if not isinstance(method.claims, (set, frozenset)) or not all(isinstance(seam, Seam) for seam in method.claims):
        raise ValueError(f"{method.name!r} must have a set of seams as claims, got {method.claims!r}")
    for name, value in texts.items():
        if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{method.name!r} must have a tuple of texts as {name}, got {value!r}")


def needed_files(method: Method, policy: Path) -> list[Path]:
    """Returns the files that a method needs besides the policy's.

    Raises:
        ValueError: Its code fails, or it names something else than files.
    """
    with naming(f"the files of the method {method.name!r} cannot be named"):
        paths = list(method.files(policy))
    for path in paths:
        if not isinstance(path, Path) or path.is_dir():
            raise ValueError(f"{method.name!r} must name files that it needs, got {path!r}")
    return paths


def obstacle(method: Method | type[Method], model: type[FlowModel], name: str) -> str | None:
    """Returns why a method cannot run on models of a type, as a sentence; None where it can.

    Args:
        method: The method.
        model: The type of the model.
        name: How the sentence calls the policy or the family.
    """
    if missing := sorted(method.claims - ROUND_SEAMS - model.seams):
        return (
            f"{method.name!r} replaces the {missing[0].value!r} seam, which {name} does not offer: its model "
            f"({model.__name__}) has {', '.join(sorted(seam.value for seam in model.seams)) or 'none inside'}"
        )
    if method.requires is not None and not issubclass(model.context, method.requires):
        return (
            f"{method.name!r} requires a context of the kind {method.requires.__name__}, and the model of {name} "
            f"produces a {model.context.__name__}"
        )
    reason = method.misfit(model)
    return reason and f"{method.name!r} cannot run on {name}: {reason}"


class Methods:
    """Methods that act together, composed once.

    Args:
        methods: Methods with disjoint claims; none is dense.

    Raises:
        ValueError: Two methods claim the same seam, or one declares itself in another type than it should.
    """

    def __init__(self, methods: Iterable[Method] = ()) -> None:
        self.all = tuple(methods)
        self.owner: dict[Seam, Method] = {}
        for method in self.all:
            _check_declarations(method)
            for seam in sorted(method.claims):
                if seam in self.owner:
                    raise ValueError(
                        f"{self.owner[seam].name!r} and {method.name!r} cannot be combined: both replace the "
                        f"{seam.value!r} seam"
                    )
                self.owner[seam] = method
        for outer, inner in CONTAINS.items():
            for seam in sorted(inner & self.owner.keys()):
                if outer in self.owner and self.owner[outer] is not self.owner[seam]:
                    raise ValueError(
                        f"{self.owner[outer].name!r} and {self.owner[seam].name!r} cannot be combined: the "
                        f"{seam.value!r} seam is missing from rounds in which the {outer.value!r} seam is used"
                    )
        self.prefill_ops: Ops = DENSE
        self.step_ops: Ops = DENSE
        self.stages: Stages | None = None

    def attach(self, policy: Policy) -> None:
        """Attaches every method to the policy, and composes their ops and stages.

        Raises:
            ValueError: A claimed seam is not offered by the policy's model, a method requires another kind of context,
                or a method refuses the policy or fails.
        """
        model = policy.model
        for method in self.all:
            if reason := obstacle(method, type(model), policy.name):
                raise ValueError(reason)
        for method in self.all:
            with naming(f"the method {method.name!r} cannot be attached to {policy.name}"):
                method.attach(policy)
        with naming(f"the stages of {policy.name} cannot be replaced"):
            self.prefill_ops = self._join(Seam.PREFILL_ROWS, Seam.PREFILL_FFN, [m.prefill_ops() for m in self.all])
            self.step_ops = self._join(Seam.STEP_ROWS, Seam.STEP_FFN, [m.step_ops() for m in self.all])
            backend = self.owner.get(Seam.BACKEND)
            self.stages = backend.stages(model, self.prefill_ops, self.step_ops) if backend else model.stages()

    def begin(self) -> None:
        """Starts an episode."""
        for method in self.all:
            method.begin()

    def end(self, success: bool) -> None:
        """Ends an episode."""
        for method in self.all:
            method.end(success)

    def idle(self, budget_ns: int) -> None:
        """Offers time in which the accelerator is free."""
        for method in self.all:
            method.idle(budget_ns)

    def counters(self) -> dict[str, float]:
        """Returns what the methods did since ``begin``.

        Raises:
            RuntimeError: Two methods count under one name.
        """
        counted: dict[str, float] = {}
        for method in self.all:
            own = method.counters()
            if shared := sorted(own.keys() & counted.keys()):
                raise RuntimeError(
                    f"{method.name!r} counts {shared}, as another method of this agent does; rename them"
                )
            counted |= own
        return counted

    def look(self, call: Call) -> None:
        """Shows every method the observation."""
        for method in self.all:
            method.look(call)

    def observe_full(self, call: Call) -> None:
        """Shows every method the result of the full path."""
        for method in self.all:
            method.observe_full(call)

    def propose(self, call: Call) -> Proposal | None:
        """ROUND."""
        return self.owner[Seam.ROUND].propose(call) if Seam.ROUND in self.owner else None

    def window(self, window: int) -> int:
        """WINDOW."""
        return self.owner[Seam.WINDOW].window(window) if Seam.WINDOW in self.owner else window

    def context(self, call: Call) -> Any | None:
        """CONTEXT; None is the prefill's."""
        return self.owner[Seam.CONTEXT].context(call) if Seam.CONTEXT in self.owner else None

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """SCHEDULE."""
        return self.owner[Seam.SCHEDULE].schedule(call, flow) if Seam.SCHEDULE in self.owner else flow.schedule()

    def start(self, call: Call, flow: FlowSpec) -> Start | None:
        """INIT; None is the noise."""
        return self.owner[Seam.INIT].init(call, flow) if Seam.INIT in self.owner else None

    def prediction(self, call: Call, x: Tensor, time: float, prediction: Tensor) -> Tensor:
        """PREDICTION."""
        if Seam.PREDICTION not in self.owner:
            return prediction
        return self.owner[Seam.PREDICTION].prediction(call, x, time, prediction)

    @property
    def routes(self) -> tuple[str, ...]:
        """Routes that rounds may take."""
        own = [route for method in self.all for route in method.routes]
        naming = [method.routes for method in self.all if type(method).route is not Method.route]
        parts = [[route for route in routes if route != FULL] for routes in naming]
        several = [each for count in range(2, len(parts) + 1) for each in combinations(parts, count)]
        return tuple(dict.fromkeys([*own, *("+".join(names) for each in several for names in product(*each))]))

    def route(self, call: Call) -> str:
        """Returns the route of a round that took the full path.

        Raises:
            RuntimeError: A method gives a name that no method declares.
        """
        answers = [route for method in self.all if (route := method.route(call)) is not None]
        return self.declared("+".join(answers) or FULL)

    def declared(self, route: str) -> str:
        """Returns a route that methods declare.

        Raises:
            RuntimeError: They do not, so that no latency profile could have been checked against it.
        """
        if route not in (FULL, *self.routes):
            raise RuntimeError(f"no method declares the route {route!r} in its `routes`")
        return route

    def _join(self, rows: Seam, ffn: Seam, each: list[Ops]) -> Ops:
        """Returns one Ops that asks the seams' owners, and shows every method's tap what is attended to."""
        by_method = dict(zip(self.all, each, strict=True))
        by_rows, by_ffn = (by_method[self.owner[seam]] if seam in self.owner else DENSE for seam in (rows, ffn))
        taps = [ops for ops in each if type(ops).attended is not Ops.attended]
        if by_rows is by_ffn is DENSE and not taps:
            return DENSE
        return _Joined(by_rows, by_ffn, taps)


class _Joined(Ops):
    """The ops of several methods as one."""

    def __init__(self, rows: Ops, ffn: Ops, taps: list[Ops]) -> None:
        self._rows, self._ffn, self._taps = rows, ffn, taps
        self._every = list({id(ops): ops for ops in (rows, ffn, *taps)}.values())

    def start(self, call: Call) -> None:
        for ops in self._every:
            ops.start(call)

    def at(self, step: int) -> None:
        for ops in self._every:
            ops.at(step)

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        return self._rows.rows(layer, x)

    def keys_values(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._rows.keys_values(layer, k, v, rows)

    def ffn(self, layer: int, x: Tensor, ffn: nn.Module, rows: Tensor | None) -> Tensor:
        return self._ffn.ffn(layer, x, ffn, rows)

    def scatter(self, layer: int, x: Tensor, computed: Tensor, rows: Tensor) -> Tensor:
        return self._rows.scatter(layer, x, computed, rows)

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        for ops in self._taps:
            ops.attended(layer, q, k)
