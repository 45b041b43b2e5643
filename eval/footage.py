"""A stored episode shown again: its environment takes the stored actions once more, and no policy is asked.

The actions are played twice. The first time nothing is rendered: it finds out when everything happened, and whether
what happens here is what was stored. Only then are images made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.envs.registration import load_env_creator

from .rows import manifest_of
from .spec import BadInput, unknown
from .worker import hash_observation, state_bytes

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow
    from ..results.store import Store
    from .registry import Registry

RENDERED = "rgb_array"
FPS = 20
PERIOD_NS = 1_000_000_000 // FPS


class NotTheSame(ValueError):
    """An episode does not come out as it was stored, so that images of it would show something else."""


class NoActions(BadInput):
    """The actions of an episode were not kept."""


@dataclass(frozen=True)
class Course:
    """What an episode's actions do here, and when, in nanoseconds of simulated time.

    Attributes:
        row: The episode.
        actions: Executed actions, [steps, ...].
        looked_ns: When the state was seen that each action follows from, or the last one before it in its chunk.
        acted_ns: When each action took effect: later, where the world did not wait for its round.
        end_ns: When the episode ended.
        bit_equal: Whether every action and state came out as stored, and not the outcome alone.
    """

    row: EpisodeRow
    actions: np.ndarray
    looked_ns: tuple[int, ...]
    acted_ns: tuple[int, ...]
    end_ns: int
    bit_equal: bool

    @property
    def rounds_ns(self) -> list[tuple[int, str]]:
        """When each round began, and its route."""
        starts = (*self.looked_ns, self.end_ns)
        return [(starts[each.control_step], each.route) for each in self.row.rounds]


def follow(row: EpisodeRow, store: Store, registry: Registry) -> Course:
    """Plays an episode's actions without rendering, and makes sure that it comes out as stored.

    Args:
        row: The episode.
        store: Where its actions are.
        registry: Where its suite comes from.

    Raises:
        NoActions: They were not kept.
        NotTheSame: Another first observation, other actions or another outcome.
        BadInput: The suite is not here.
        SuiteUnavailable: It lacks something.
    """
    kept = store.actions(row.key)
    if not row.trajectory_hash:
        raise NoActions(f"{_name(row)} has no actions: it was not played to an end")
    if row.steps and not kept:
        raise NoActions(
            f"{store.path.parent} has no actions of {_name(row)}; measure it again, with --keep-actions (the default)"
        )
    env = make_environment(row, registry, images=False)
    try:
        shape, kind = env.action_space.shape, env.action_space.dtype
        if len(kept) != row.steps * kind.itemsize * int(np.prod(shape)):
            raise NotTheSame(f"{_name(row)} has actions that are not {kind} {shape}, as its suite takes them here")
        return _followed(row, np.frombuffer(kept, kind).reshape(row.steps, *shape), env)
    finally:
        env.close()


def frames(course: Course, registry: Registry) -> Iterator[np.ndarray]:
    """Yields images uint8 [H, W, 3] at :data:`FPS` per second of simulated time, from the reset to the end."""
    env = make_environment(course.row, registry, images=True)
    renders, image, shown = env.render_mode == RENDERED, np.empty(0), 0
    try:
        for now in _played(course.row, course.actions, env):
            env.unwrapped.cameras_on = not renders
            if shown * PERIOD_NS > now.time_ns:
                continue
            if renders:
                image = env.render()
            elif now.observation is not None:
                image = _cameras(now.observation)
            while shown * PERIOD_NS <= now.time_ns:
                yield image
                shown += 1
    finally:
        env.close()


def make_environment(row: EpisodeRow, registry: Registry, *, images: bool) -> Any:
    """Builds the environment of an episode; one that renders, where images are wanted and it can.

    Raises:
        BadInput: The suite is not here.
        SuiteUnavailable: It lacks something.
    """
    if row.suite not in registry.suites():
        raise unknown("suite", row.suite, registry.suites())
    suite = registry.suites()[row.suite]
    modes = getattr(load_env_creator(suite.entry_point), "metadata", {}).get("render_modes", ()) if images else ()
    return registry.environment(suite, {**row.settings, **({"render_mode": RENDERED} if RENDERED in modes else {})})


class _Now(NamedTuple):
    """A moment of an episode; there is no observation while a round is computed."""

    time_ns: int
    over: bool
    observation: Mapping[str, Any] | None
    info: Mapping[str, Any]


def _played(row: EpisodeRow, actions: np.ndarray, env: Any) -> Iterator[_Now]:
    """Plays an episode; yields after the reset, while rounds are computed, and after every action."""
    world = env.unwrapped
    world.cameras_on = True
    observation, info = env.reset(seed=row.seed, options={"task": row.task, "init_state": row.init_state})
    yield _Now(int(world.time_ns), False, observation, info)
    latencies = {each.control_step: each.latency_ns for each in row.rounds}  # 0 where the world waited
    most = max(1, PERIOD_NS // world.tick_ns)
    for step, action in enumerate(actions):
        ticks = -(-latencies.get(step, 0) // world.tick_ns)  # as RealTime rounds up
        while ticks > 0:
            world.hold(min(ticks, most))
            ticks -= most
            yield _Now(int(world.time_ns), False, None, {})
        observation, _, terminated, truncated, info = env.step(action)
        yield _Now(int(world.time_ns), bool(terminated or truncated), observation, info)


def _followed(row: EpisodeRow, actions: np.ndarray, env: Any) -> Course:
    world, moments = env.unwrapped, _played(row, actions, env)
    now = next(moments)
    if (hash_observation(now.observation or {}), manifest_of(now.info)) != (row.observation_hash, row.manifest):
        raise NotTheSame(f"{_name(row)} begins otherwise here: its suite, or this machine, is another than the run's")
    world.cameras_on = False
    trajectory = hashlib.sha256(state_bytes(world))
    looked, acted, over = [], [], bool(now.info.get("success", False))
    seen_ns = start_ns = now.time_ns
    for now in moments:
        if now.observation is not None:
            trajectory.update(actions[len(acted)].tobytes() + state_bytes(world))
            looked.append(seen_ns)
            acted.append(start_ns)
            seen_ns, over = now.time_ns, now.over
            if over:
                break
        start_ns = now.time_ns
    success, outcome = bool(now.info.get("success", False)), str(now.info.get("outcome", ""))
    bit_equal = trajectory.hexdigest() == row.trajectory_hash
    # What the policy did wrong ended an episode that goes on here.
    as_stored = not over if row.failure else (success, outcome or "success") == (row.success, row.outcome)
    if not bit_equal and (len(acted) < len(actions) or not as_stored):
        here = f"{outcome or 'no end'} after {len(acted)} actions"
        raise NotTheSame(f"{_name(row)} ended as {row.outcome!r} after {row.steps}, and comes out here as {here}")
    return Course(row, actions, tuple(looked), tuple(acted), now.time_ns, bit_equal)


def _cameras(observation: Mapping[str, Any]) -> np.ndarray:
    """Returns the images of an observation side by side, for environments that do not render."""
    images = [value for value in observation.values() if isinstance(value, np.ndarray) and value.ndim == 3]
    height = max(image.shape[0] for image in images)
    return np.concatenate([np.pad(i, ((0, height - i.shape[0]), (0, 0), (0, 0))) for i in images], axis=1)


def _name(row: EpisodeRow) -> str:
    return f"the episode of {row.method!r} on {row.task} {row.init_state} ({row.suite}, seed {row.seed})"
