"""What every environment does in the same way: it looks again at a success, and refuses what it cannot take."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import toys
from replan.envs import SUITES
from replan.envs.world import HEADLINE, SETTLE_NS, action_array, digest

RIGHT = np.ones(1, np.float32)


class Film(toys.Toy):
    """Its frames show where the point is; the goal is left at once, because the last command holds."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def _render(self):
        return np.full((2, 2, 3), int(self.x * 50), np.uint8)


class Stops(toys.Toy):
    def _act(self, action):
        outcome = super()._act(action)
        self.velocity = 0.0 if outcome else self.velocity
        return outcome


class StartsAtTheGoal(toys.Toy):
    def _begin(self, task, init_state, seed):
        manifest = super()._begin(task, init_state, seed)
        self.x = self.goal
        return manifest


class AtTheDeadline(Stops):
    """It runs out of time in the step in which it comes to the goal."""

    def _act(self, action):
        return "time" if super()._act(action) else None


def play(env, seed=0):
    env.reset(seed=seed, options={"task": "right", "init_state": 0})
    while True:
        observation, reward, terminated, truncated, info = env.step(RIGHT)
        if terminated or truncated:
            return observation, info


@pytest.mark.parametrize(
    ("kind", "success", "at_end"),
    [(toys.Toy, True, False), (Stops, True, True), (AtTheDeadline, False, False)],
)
def test_a_success_that_passes_is_told_from_one_that_lasts(kind, success, at_end):
    _, info = play(kind())
    assert (info["success"], info["success_at_end"]) == (success, at_end)


def test_the_second_look_shows_nowhere_else():
    env = Film(render_mode="rgb_array")
    observation, info = play(env)
    assert info["success"] and not info["success_at_end"]
    assert abs(env.x - env.goal) > 0.5  # the world has moved on
    state, frame = env.get_state(), env.render()
    assert abs(state[0] - env.goal) < 0.1 and observation["state"][0] == np.float32(state[0])
    assert frame[0, 0, 0] == int(state[0] * 50)
    assert env.time_ns % 100_000_000 == 0 and env.time_ns < 5_000_000_000
    state[:], frame[:] = 0, 0
    assert env.get_state()[0] and env.render().any()  # copies
    again, _ = env.reset(seed=3, options={"task": "left", "init_state": 1})
    fresh, _ = Film().reset(seed=3, options={"task": "left", "init_state": 1})
    assert again["state"] == fresh["state"] and env.time_ns == 0


def test_the_rule_is_asked_at_the_start_and_the_manifest_names_the_headline():
    _, info = StartsAtTheGoal().reset(seed=0)
    assert info["success"] is True
    _, info = toys.Toy().reset(seed=0)
    assert info["success"] is False
    assert info["manifest"]["headline"] == HEADLINE and f"{SETTLE_NS // 10**9} s later" in HEADLINE


def test_an_environment_without_a_rule_cannot_be_made():
    class NoRule(toys.Toy):
        _solved = toys.CellEnv._solved  # abstract

    with pytest.raises(TypeError, match="_solved"):
        NoRule()


def test_after_the_end_and_after_close_only_a_reset_goes_on():
    env = Film(render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode was started"):
        env.render()
    play(env)
    for use in (lambda: env.step(RIGHT), lambda: env.hold(1)):
        with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
            use()
    env.close()
    for use in (lambda: env.step(RIGHT), lambda: env.hold(1), env.get_state, env.render):
        with pytest.raises(gymnasium.error.ResetNeeded, match="the environment is closed"):
            use()
    env.reset(seed=0)
    env.step(RIGHT)


@pytest.mark.parametrize("name", ["conveyor", "packing"])
def test_a_closed_environment_opens_no_graphics(name):
    env = gymnasium.make(SUITES[name].env_id, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    env.close()
    for use in (env.render, lambda: env.step(np.zeros(7)), lambda: env.expert_chunk(1)):
        with pytest.raises(gymnasium.error.ResetNeeded, match="closed"):
            use()
    assert not env._renderers._kept


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.full(2, 1e300), "finite as float32"),
        (np.array([0, np.nan]), "finite"),
        (np.zeros(3), r"shape \(2,\), got \(3,\)"),
        (np.zeros((1, 2)), r"got \(1, 2\)"),
        ([[0], [1, 2]], r"an array of shape \(2,\), got a list"),
        (np.zeros(2, complex), "complex128"),
        (np.zeros(2, bool), "type bool"),
        (["1", "2"], "<U1"),
        (np.array([None, 1]), "object"),
        ({"action": 1}, "object from a dict"),
        (None, "object from a NoneType"),
        ([10**400, 0], "object"),
    ],
)
def test_what_is_no_action_is_a_value_error(action, message):
    with pytest.raises(ValueError, match=message):
        action_array(action, gymnasium.spaces.Box(-1, 1, (2,), np.float32))


def test_an_action_keeps_its_own_precision():
    taken = action_array([0.1, 1], gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    assert taken.dtype == np.float64 and taken.tolist() == [0.1, 1.0]


@pytest.mark.parametrize(
    "options", [5, "task", [1], {"task": ["left"]}, {"task": None, 3: 1}, {"task": np.array(["a"])}]
)
def test_odd_reset_options_are_refused(options):
    with pytest.raises(ValueError, match="task"):
        toys.Toy().reset(seed=0, options=options)


@pytest.mark.parametrize("seed", [-1, True, 1.0, "0", 2**63])
def test_odd_seeds_are_refused(seed):
    with pytest.raises(ValueError, match="the seed must be a whole number"):
        toys.Toy().reset(seed=seed)


def test_seeds_of_the_command_line_are_taken_and_differ():
    starts = [toys.Toy().reset(seed=seed, options={"task": "left"})[0]["state"][0] for seed in (1, 2**32 + 1, 2**53)]
    assert len(set(starts)) == 3
    assert toys.Toy().reset(seed=np.int64(1), options={"task": "left"})[0]["state"][0] == starts[0]


WRONG = {
    float: (True, "10", float("nan"), -1.0),
    int: (True, 64.5, "64", 0),
    bool: ("false", 0, 1.0),
    str: (5, "nonsense", True),
}
ANY_TEXT = ("root", "python", "config")
SETTINGS = [
    (suite.name, name, value)
    for suite in SUITES.values()
    for name, kind in {**suite.settings, **{name: type(value) for name, value in suite.kwargs.items()}}.items()
    for value in WRONG[kind]
    if not (name in ANY_TEXT and isinstance(value, str))
]


@pytest.mark.parametrize(("suite", "name", "value"), SETTINGS)
def test_a_setting_of_another_type_or_out_of_range_is_refused_by_name(suite, name, value):
    with pytest.raises(ValueError, match=f"{name}|{value}"):
        gymnasium.make(SUITES[suite].env_id, disable_env_checker=True, **{name: value})


FORKED = """
import sys
import gymnasium, numpy as np, replan.envs
if __name__ == "__main__":
    env = gymnasium.make("replan/ConveyorSorting-v0")
    first, _ = env.reset(seed=5)
    kwargs = {"shared_memory": False} | ({"context": "spawn"} if sys.argv[1] == "spawn" else {})
    envs = gymnasium.make_vec(
        "replan.envs:replan/ConveyorSorting-v0", 2, vectorization_mode="async", vector_kwargs=kwargs
    )
    try:
        seen, _ = envs.reset(seed=[5, 6])
        print(np.array_equal(seen["third"][0], first["third"]), list(seen["instruction"]) != ["", ""])
    except RuntimeError as error:
        print(type(error).__name__, error)
    envs.close(terminate=True)
"""


def run(code, *arguments, path, **environment):
    script = path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, **environment},
        cwd=path,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="processes are not forked by default elsewhere")
@pytest.mark.parametrize(("how", "seen"), [("fork", "ForkedGraphics this process is a fork"), ("spawn", "True True")])
def test_a_fork_of_a_process_that_has_rendered_is_refused_and_a_spawned_one_renders(tmp_path, how, seen):
    done = run(FORKED, how, path=tmp_path)
    assert seen in done.stdout, done.stderr


UNSTABLE = """
import gymnasium, numpy as np, replan.envs
env = gymnasium.make("replan/ConveyorSorting-v0").unwrapped
env.cameras_on = False
env.reset(seed=0)
env._physics.data.qpos[:] = np.nan
env.hold(3)
"""


def test_an_unstable_simulation_is_logged_and_leaves_no_file_in_the_current_directory(tmp_path):
    done = run(UNSTABLE, path=tmp_path)
    assert done.returncode == 0 and "unstable" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_time_passes_with_actions_and_while_the_robot_holds():
    env = toys.Toy()
    assert env.time_ns == 0
    env.reset(seed=1)
    env.step(RIGHT)
    env.hold(3)
    env.hold(0)
    assert env.time_ns == 130_000_000
    with pytest.raises(ValueError, match="ticks"):
        env.hold(-1)


def test_a_success_is_looked_at_again_after_a_second_in_whole_ticks():
    class Coarse(toys.Toy):
        tick_ns, advanced = 300_000_000, ()

        def _act(self, action):
            return "success"

        def _advance(self, ticks):
            self.advanced += (ticks,)

    env = Coarse()
    env.reset(seed=0)
    env.step(RIGHT)
    assert env.advanced == (4,) and SETTLE_NS == 10**9 and " 1 s later" in HEADLINE


class Begun(toys.Toy):
    """Notes the cells that it is asked to start, and fails for one of them."""

    recorded_states = range(10, 13)

    def __init__(self):
        super().__init__()
        self.begun = []

    def _begin(self, task, init_state, seed):
        self.begun.append((task, init_state, seed))
        if init_state == 2:
            raise RuntimeError("no such scene")
        return super()._begin(task, init_state, seed)


def test_without_a_seed_cells_continue_the_stream_of_the_last_one():
    env = Begun()
    for seed in (5, None, None, 2**63 - 1):
        env.reset(seed=seed, options={"task": "left"})
    random, _ = gymnasium.utils.seeding.np_random(5)
    drawn = [int(random.integers(2**31)) for _ in range(2)]
    assert env.begun == [("left", 0, seed) for seed in (5, *drawn, 2**63 - 1)]


@pytest.mark.parametrize("init_state", [-1, 4, 9, 13, True, 1.0, "0", None])
def test_an_initial_state_that_does_not_exist_is_refused_with_those_that_do(init_state):
    env = Begun()
    with pytest.raises(ValueError, match=r"index in 0..3, or for training in 10..12, got"):
        env.reset(seed=0, options={"init_state": init_state})
    with pytest.raises(ValueError, match=r"index in 0..3, got 4"):
        toys.Toy().reset(seed=0, options={"init_state": 4})
    assert env.begun == []


def test_every_initial_state_that_exists_is_taken():
    env = Begun()
    states = [0, 3, np.int64(1), 10, 12]
    for init_state in states:
        env.reset(seed=0, options={"task": "left", "init_state": init_state})
    assert [state for _, state, _ in env.begun] == states and type(env.begun[2][1]) is int
    env.init_states = None
    env.reset(seed=0, options={"init_state": 10**9})
    with pytest.raises(ValueError, match="index from 0, or for training"):
        env.reset(seed=0, options={"init_state": -1})


def test_a_task_that_does_not_exist_is_refused_with_those_that_do():
    env = Begun()
    with pytest.raises(ValueError, match="unknown task 'up'; the tasks are left, right"):
        env.reset(seed=0, options={"task": "up"})
    assert env.begun == []


def test_a_reset_that_fails_leaves_no_episode():
    env = Begun()
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="no such scene"):
        env.reset(seed=0, options={"init_state": 2})
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode was started"):
        env.step(RIGHT)


def test_a_film_shows_the_episode_that_runs_and_not_the_end_of_the_last_one():
    env = Film(render_mode="rgb_array")
    assert Film().render() is None
    for _ in range(2):
        env.reset(seed=0, options={"task": "right", "init_state": 0})
        env.x = 0.5
        assert env.render()[0, 0, 0] == 25
        play(env)


def test_a_digest_is_of_all_its_parts_and_never_changes():
    """Stored rows are compared by the digests of their manifests."""
    assert digest("a", 1.5) == "a7b1cd622b7544bd"
