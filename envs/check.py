"""Checks that a suite keeps the contract of :class:`replan.envs.world.World`; its author calls it in a test."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import random  # noqa: TID251  # whether the global generators are left alone
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from .errors import SuiteUnavailable
from .suite import Suite

MANIFEST = ("init_state", "fixtures", "instruction", "step_budget", "success_rule")
SEED, STEPS, HELD_TICKS = 5, 3, 7  # arbitrary: enough to move something
LIT = 25  # in an episode that is played to its end, images are rendered in its first steps and in one of this many
FAR_STATE = 1_000_000  # where initial states are sampled without end
LONGEST_EPISODE = 10_000  # steps; no suite of ours allows more than 1 500
LONGEST_PLAY = 30  # steps of an episode that is compared with itself: RoboTwin takes 0.3 s for one
BRIEF_PLAY = 20  # where what could go wrong goes wrong at once
LARGEST_SEED = 2**53  # that the command line takes


class BrokenContract(AssertionError):
    """A suite does not do what the harness relies on."""


def check_suite(suite: Suite, *, task: str | None = None, settings: Mapping[str, Any] | None = None) -> None:
    """Checks everything that the harness relies on, on two tasks; it plays episodes to their end.

    Args:
        suite: The suite.
        task: Task to check with, besides the last (or, if it is the last, the first); None takes the first.
        settings: Environment arguments, such as small images.

    Raises:
        BrokenContract: The suite breaks a promise; the message names both.
        SuiteUnavailable: Something that the suite needs is missing.

    Example:
        >>> from replan.envs import SUITES
        >>> check_suite(SUITES["conveyor"])
    """
    task, settings = task or suite.tasks[0], dict(settings or {})
    with _promise(suite, "its description fits the class of the environment"):
        _check_description(suite)
    env = _make(suite, settings)
    try:
        with _promise(suite, "spaces, ticks and state are of the documented types"):
            _check_types(suite, env, task)
        with _promise(suite, "step, hold and get_state raise ResetNeeded before the first reset and after close"):
            _check_without_scene(_make(suite, settings), task)
        with _promise(suite, "the manifest is text or numbers, and differs between initial states"):
            _check_manifest(suite, env, task)
        first = _play(env, task)
        with _promise(suite, "observations and states share no memory with later ones"):
            _check_buffers(env, task)
        other = suite.tasks[0] if task == suite.tasks[-1] else suite.tasks[-1]
        with _promise(suite, "a cell is the same after other cells"):
            env.reset(seed=SEED + 1, options={"task": other, "init_state": 0})
            env.step(_actions(env)[0])
            _assert_equal(_play(env, task), first)
        tasks = list(dict.fromkeys([other, task]))  # there in the other order than here
        with _promise(suite, "it can be played in another process"):
            elsewhere = dict(zip(tasks, _play_elsewhere(suite, settings, tasks), strict=True))
        for name in tasks:
            with _promise(suite, f"a cell of task {name!r} is the same in another process"):
                _assert_equal(elsewhere[name], first if name == task else _play(env, name))
        with _promise(suite, "global random generators have no effect, and are left as they were"):
            _check_generators(env, task, first)
        with _promise(suite, "images are black with cameras_on False, and nothing else changes"):
            _check_cameras_off(suite, env, task, first)
        with _promise(suite, "bad actions are refused with a ValueError and change nothing"):
            _check_bad_actions(env, task)
        with _promise(suite, "bad reset options are refused with a ValueError"):
            _check_bad_options(suite, env, task)
        with _promise(suite, "hold advances the world and time_ns by whole ticks, and refuses negative ones"):
            _check_hold(env, task)
        with _promise(suite, "info has success always, and outcome and success_at_end on the last step only"):
            _check_episode(env, task)
        with _promise(suite, "Gymnasium's checker finds no fault"):
            _check_gymnasium(env, task)
    finally:
        env.close()


@contextmanager
def _promise(suite: Suite, promise: str) -> Iterator[None]:
    """Names the suite and the promise in whatever goes wrong inside."""
    try:
        yield
    except SuiteUnavailable:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise BrokenContract(f"suite {suite.name!r} breaks the promise that {promise}: {what}") from error


def _make(suite: Suite, settings: Mapping[str, Any]) -> Any:
    if suite.env_id not in gymnasium.registry:
        gymnasium.register(suite.env_id, suite.entry_point, kwargs=dict(suite.kwargs))
    with _promise(suite, "it can be made"):
        return gymnasium.make(suite.env_id, disable_env_checker=True, **settings).unwrapped


def _check_description(suite: Suite) -> None:
    module, _, name = suite.entry_point.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    for setting, kind in suite.settings.items():
        assert setting in parameters, f"setting {setting!r} is no argument of {name}"
        annotation = str(parameters[setting].annotation)
        assert kind.__name__ in annotation, f"setting {setting!r} is {kind.__name__}, and the argument {annotation}"


def _check_types(suite: Suite, env: Any, task: str) -> None:
    assert isinstance(env.tick_ns, int) and env.tick_ns > 0, f"tick_ns must be a positive int, got {env.tick_ns!r}"
    assert isinstance(env.action_space, spaces.Box), f"the action space must be a Box, got {env.action_space}"
    observation, _ = _reset(env, task)
    _assert_in_space(env, observation)
    state, instruction = observation["state"], observation["instruction"]
    assert state.dtype == np.float32 and state.ndim == 1, f"state must be float32 [n], got {state.dtype}{state.shape}"
    assert isinstance(instruction, str) and instruction, f"instruction must be text, got {instruction!r}"
    for camera in suite.cameras:
        image = observation[camera]
        assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3, (
            f"{camera} must be uint8 [H, W, 3], got {image.dtype}{list(image.shape)}"
        )
        assert image.any(), f"{camera} is black with cameras_on True"
    simulator = env.get_state()
    assert simulator.dtype == np.float64 and simulator.ndim == 1, (
        f"get_state must be float64 [n], got {simulator.dtype}{list(simulator.shape)}"
    )
    assert np.isfinite(simulator).all(), "get_state is not finite"
    before = env.time_ns
    assert before == 0, f"time_ns must be 0 after a reset, got {before!r}"
    env.step(_actions(env)[0])
    assert isinstance(env.time_ns, int) and env.time_ns > 0, f"time_ns must be a growing int, got {env.time_ns!r}"
    assert env.time_ns % env.tick_ns == 0, f"time_ns must be whole ticks of {env.tick_ns}, got {env.time_ns}"


def _assert_in_space(env: Any, observation: dict[str, Any]) -> None:
    known = env.observation_space.spaces
    for name in {**known, **observation}:
        inside = name in observation and name in known and known[name].contains(observation[name])
        assert inside, f"the observation's {name} is not in the observation space"


def _check_without_scene(env: Any, task: str) -> None:
    try:
        _assert_needs_reset(env, ("step", "hold", "get_state"))
        _reset(env, task)
    finally:
        env.close()
    _assert_needs_reset(env, ("step", "hold", "get_state"), " after close")


def _assert_needs_reset(env: Any, names: tuple[str, ...], when: str = "") -> None:
    arguments = {"step": (_actions(env)[0],), "hold": (1,), "get_state": ()}
    for name in names:
        try:
            getattr(env, name)(*arguments[name])
        except gymnasium.error.ResetNeeded:
            continue
        except Exception as error:
            raise AssertionError(f"{name}{when} raised {type(error).__name__}: {error}") from error
        raise AssertionError(f"{name}{when} raised nothing")


def _assert_json(what: str, value: Any) -> None:
    """Results are stored as JSON, which has no arrays, tuples, infinities, or keys other than text."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} is not JSON ({error}): {value!r}") from error
    assert same, f"{what} is not the same as JSON: {value!r}"


def _check_manifest(suite: Suite, env: Any, task: str) -> None:
    observation, info = _reset(env, task)
    manifest = info["manifest"]
    if missing := [name for name in MANIFEST if name not in manifest]:
        raise AssertionError(f"it lacks {', '.join(missing)}")
    for name, value in manifest.items():
        assert isinstance(value, (str, int, float)), f"{name} is a {type(value).__name__}"
    _assert_json("it", manifest)
    assert manifest["instruction"] == observation["instruction"], "its instruction is not the observation's"
    described = suite.instructions.get(task, observation["instruction"])
    assert observation["instruction"] == described, f"the suite's description says {described!r}"
    last = FAR_STATE if suite.init_states is None else suite.init_states - 1
    for init_state in sorted({1, last}) if last else ():
        _, info = env.reset(seed=SEED, options={"task": task, "init_state": init_state})
        assert info["manifest"]["init_state"] != manifest["init_state"], (
            f"initial states 0 and {init_state} have the same digest"
        )


def _check_buffers(env: Any, task: str) -> None:
    observation, _ = _reset(env, task)
    held = []
    for action in _actions(env):
        state = env.get_state()
        held.append((observation, state, _digests(observation, state)))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    env.reset(seed=SEED + 1, options={"task": task, "init_state": 0})
    env.get_state()
    for step, (observation, state, digests) in enumerate(held):
        changed = [name for name, digest in _digests(observation, state).items() if digest != digests[name]]
        assert not changed, f"{', '.join(changed)} of step {step} changed afterwards"


def _check_generators(env: Any, task: str, first: list[dict[str, Any]]) -> None:
    callers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            before = _generator_states()
            _assert_equal(_play(env, task, BRIEF_PLAY), first[: BRIEF_PLAY + 1])
            assert _generator_states() == before, "a global generator was used"
    finally:
        random.setstate(callers[0])
        np.random.set_state(callers[1])  # noqa: NPY002


def _generator_states() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tolist(), numpy[2:]


def _check_cameras_off(suite: Suite, env: Any, task: str, first: list[dict[str, Any]]) -> None:
    env.cameras_on = False
    try:
        dark = _play(env, task)
        observation, _ = _reset(env, task)
        _assert_in_space(env, observation)
        for camera in suite.cameras:
            assert not observation[camera].any(), f"{camera} is not black"
    finally:
        env.cameras_on = True
    without = [[{k: v for k, v in row.items() if k not in suite.cameras} for row in rows] for rows in (dark, first)]
    _assert_equal(*without)


def _check_bad_actions(env: Any, task: str) -> None:
    _reset(env, task)
    before, good = env.get_state(), _actions(env)[0]
    for name, action in (
        ("of another shape", np.append(good, 0.0)),
        ("with NaN", np.full_like(good, np.nan)),
        ("with infinity", np.full_like(good, np.inf)),
        ("beyond its own type", np.full(good.shape, 1e300)),
        ("of complex numbers", good.astype(np.complex64)),
        ("of text", good.astype(str)),
        ("of truth values", good > 0),
        ("that is a dictionary", {"action": good}),
        ("that is ragged", [[0.0], *good.tolist()]),
    ):
        _assert_refused(f"an action {name}", lambda action=action: env.step(action))
        assert np.array_equal(env.get_state(), before) and env.time_ns == 0, f"an action {name} changed the state"


def _check_bad_options(suite: Suite, env: Any, task: str) -> None:
    options: list[Any] = [{"tsk": task}, {"task": "no such task"}, {"task": [task]}, task, [task], 5]
    beyond = [] if suite.init_states is None else [suite.init_states]
    options += [{"task": task, "init_state": bad} for bad in (-1, 0.5, True, "0", *beyond)]
    for bad in options:
        _assert_refused(f"the options {bad}", lambda bad=bad: env.reset(seed=SEED, options=bad))
    cell = {"task": task, "init_state": 0}
    for seed in (-1, True, 0.5, "0"):
        _assert_refused(f"the seed {seed!r}", lambda seed=seed: env.reset(seed=seed, options=cell))
    env.reset(seed=LARGEST_SEED, options=cell)


def _check_hold(env: Any, task: str) -> None:
    _reset(env, task)
    state = env.get_state()
    env.hold(0)
    assert env.time_ns == 0 and np.array_equal(env.get_state(), state), "hold(0) changed something"
    env.hold(HELD_TICKS)
    assert env.time_ns == HELD_TICKS * env.tick_ns, f"{HELD_TICKS} ticks are {env.time_ns} ns"
    _assert_refused("hold(-1)", lambda: env.hold(-1))
    still = 0
    for action in _actions(env):  # one of them should move something
        _reset(env, task)
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            continue
        state = env.get_state()
        env.hold(HELD_TICKS)
        if not np.array_equal(env.get_state(), state):
            return
        still += 1
    assert not still, f"{HELD_TICKS} ticks after each of {still} actions leave the state as it was"


def _check_episode(env: Any, task: str) -> None:
    env.cameras_on = False
    try:
        _, info = _reset(env, task)
        assert isinstance(info.get("success"), bool), f"success after a reset is {info.get('success')!r}, not a bool"
        _assert_json("the info of reset", info)
        action = _actions(env)[0]
        for step in range(LONGEST_EPISODE):
            before = env.time_ns
            _, reward, terminated, truncated, info = env.step(action)
            success = info.get("success")
            assert isinstance(success, bool), f"success at step {step} is {success!r}, not a bool"
            _assert_json(f"the info of step {step}", info)
            assert env.time_ns > before, f"time_ns stands still in step {step}"
            over = bool(terminated or truncated)
            for name in ("outcome", "success_at_end"):
                assert (name in info) == over, f"step {step} has {name} or end without the other"
            assert not (terminated and truncated), f"step {step} is terminated and truncated"
            if terminated or truncated:
                outcome = info["outcome"]
                assert isinstance(outcome, str) and outcome, f"outcome must be a word, got {outcome!r}"
                assert info["success"] == (outcome == "success") == (reward == 1), (
                    f"outcome {outcome!r}, success {info['success']} and reward {reward} disagree"
                )
                at_end = info["success_at_end"]
                assert isinstance(at_end, bool), f"success_at_end is {at_end!r}, not a bool"
                assert info["success"] or not at_end, "success_at_end is True without a success"
                _assert_needs_reset(env, ("step", "hold"), " after the end")
                return
        raise AssertionError(f"no episode ended within {LONGEST_EPISODE} steps of the same action")
    finally:
        env.cameras_on = True


def _check_gymnasium(env: Any, task: str) -> None:
    reset = env.reset

    def on_one_task(*, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return reset(seed=seed, options={"task": task, **(options or {})})  # others may need another simulator

    env.reset, env.cameras_on = on_one_task, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # States have no bounds, and joint targets are not in [-1, 1].
            warnings.filterwarnings("ignore", ".*(minimum|maximum) value is -?infinity")
            warnings.filterwarnings("ignore", ".*For Box action spaces")
            check_env(env, skip_render_check=True, skip_close_check=True)
    finally:
        del env.reset
        env.cameras_on = True


def _reset(env: Any, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return env.reset(seed=SEED, options={"task": task, "init_state": 0})


def _actions(env: Any) -> list[np.ndarray]:
    """Returns actions from the middle of the action space: small differences, or absolute targets close together."""
    low, high = np.asarray(env.action_space.low, np.float64), np.asarray(env.action_space.high, np.float64)
    share = np.random.default_rng(SEED).uniform(0.4, 0.6, (STEPS, *low.shape))
    return list((low + share * (high - low)).astype(env.action_space.dtype))


def _play(env: Any, task: str, steps: int = LONGEST_PLAY) -> list[dict[str, Any]]:
    """Returns digests of everything that an episode shows, one dictionary per step, up to its end or some steps."""
    lit = env.cameras_on
    observation, info = _reset(env, task)
    rows = [{**_digests(observation, env.get_state()), "manifest": info["manifest"]}]
    actions = _actions(env)
    try:
        for step in range(steps):
            if step < STEPS:
                env.hold(HELD_TICKS)
            env.cameras_on = lit and (step < STEPS or step % LIT == 0)
            observation, reward, terminated, truncated, info = env.step(actions[step % STEPS])
            end = [float(reward), bool(terminated), bool(truncated), info.get("outcome"), info.get("success_at_end")]
            rows.append({**_digests(observation, env.get_state()), "time_ns": env.time_ns, "end": end})
            if terminated or truncated:
                break
    finally:
        env.cameras_on = lit
    return rows


def _digests(observation: Mapping[str, Any], state: np.ndarray) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        for name, value in {**observation, "get_state": state}.items()
    }


def _assert_equal(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(rows) == len(expected), f"{len(rows)} steps instead of {len(expected)}"
    for step, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        different = [name for name in wanted if row.get(name) != wanted[name]]
        assert not different, f"{', '.join(different)} differ at step {step}"


def _assert_refused(what: str, use: Any) -> None:
    try:
        use()
    except ValueError:
        return
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} was accepted")


_ELSEWHERE = "import sys; from replan.envs.check import report; report(*sys.argv[1:])"


def _play_elsewhere(suite: Suite, settings: Mapping[str, Any], tasks: list[str]) -> list[list[dict[str, Any]]]:
    arguments = [suite.env_id, suite.entry_point, *map(json.dumps, (dict(suite.kwargs), dict(settings), tasks))]
    process = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise AssertionError((process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
    return json.loads(process.stdout.splitlines()[-1])


def report(env_id: str, entry_point: str, kwargs: str, settings: str, tasks: str) -> None:
    """Prints, as JSON, what a short episode of each task shows in this process. All but the first two are JSON."""
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, entry_point, kwargs=json.loads(kwargs))
    env: Any = gymnasium.make(env_id, disable_env_checker=True, **json.loads(settings)).unwrapped
    print(json.dumps([_play(env, task) for task in json.loads(tasks)]), flush=True)
    env.close()
