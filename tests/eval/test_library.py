"""A library of executions on the conveyor: built, used, and never measured on its own episodes."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from replan.accel.library import Library
from replan.envs.demonstrations import TRAINING_SEED
from replan.eval.commands.library import build
from replan.eval.evaluate import evaluate
from replan.eval.library import Builder
from replan.eval.play import Player
from replan.eval.registry import Registry
from replan.eval.spec import BadInput, make_spec
from replan.results.store import Store

FIRST = TRAINING_SEED + 500 * 1_000_000  # seed of the first episode of the first task


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    builder = Builder(Registry(), "conveyor", "pi0-tiny", ratios=(0.5,))
    return builder.build(["dog-red"], 1, 1, tmp_path_factory.mktemp("library"))


def play(built, out, **changes):
    plain = {"suite": "conveyor", "task": "dog-red", "method": f"rmuscle:library={built.folder}", "episodes": 1}
    spec = make_spec({**plain, "device": "cpu", "out": str(out), **changes}, Registry().suites())
    evaluate(spec, Registry(), command="", started="", progress=False)
    with Store.open(spec.out) as store:
        return store.episodes()


def test_the_second_round_adds_the_beginning_least_like_the_first(built):
    assert built.episodes == {"dog-red": 2}
    pack = Library(built.folder).pack("put the toy dog in the red bin")
    assert [rows.start for rows in pack.episodes] == [0, len(pack.episodes[0])]
    assert built.rounds == sum(map(len, pack.episodes)) == len(pack.queries)
    assert built.bytes == sum(path.stat().st_size for path in built.folder.iterdir())


def test_an_evaluation_reuses_it_and_says_which_library_it_was(built, tmp_path):
    (row,) = play(built, tmp_path / "run")
    assert row.status == "done" and row.counters["ffn_rows_reused"] > 0 and row.counters["neurons_reused"] > 0
    assert row.rounds[0].route == "cached" and row.rounds[0].extra["similarity"] > 0.8
    assert row.observation_hash not in Library(built.folder).first_observations
    with Store.open(tmp_path / "run") as store:
        assert any("index.sqlite" in name for name in store.runs[0].checkpoints)


def test_an_episode_that_is_in_the_library_is_not_measured(built, tmp_path):
    (row,) = play(built, tmp_path / "run", seed=FIRST)
    assert row.status == "error" and "was made from this very episode; choose another --seed" in row.error
    (dense,) = play(built, tmp_path / "dense", seed=FIRST, method="dense")
    assert dense.status == "done" and dense.observation_hash in Library(built.folder).first_observations


@pytest.mark.parametrize(
    ("options", "message"), [({"seed": 1000}, "seed must be in 0..999"), ({"ratios": (1.0,)}, "1.0")]
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Builder(Registry(), "conveyor", "pi0-tiny", **{"ratios": (0.5,), **options})


def test_a_library_is_replaced_on_request_only_and_never_next_to_a_bundled_policy_unasked(built):
    before = {path: path.read_bytes() for path in built.folder.iterdir()}
    there = CliRunner().invoke(build, ["--suite", "conveyor", "--out", str(built.folder)])
    assert isinstance(there.exception, BadInput) and "or --overwrite to replace it" in str(there.exception)
    assert {path: path.read_bytes() for path in built.folder.iterdir()} == before
    bundled = CliRunner().invoke(build, ["--suite", "conveyor"])
    assert isinstance(bundled.exception, BadInput) and "'pi0-tiny' comes with replan" in str(bundled.exception)


def test_more_episodes_than_can_be_numbered_are_refused(tmp_path):
    builder = Builder(Registry(), "conveyor", "pi0-tiny", ratios=(0.5,))
    with pytest.raises(BadInput, match="at most 1000"):
        builder.build(["dog-red"], 1, 250, tmp_path / "library")
    assert not (tmp_path / "library").exists()


class Standard:
    """A world with standard initial states, which samples others if it is told to."""

    sampled_starts = False

    @property
    def unwrapped(self):
        return self

    def reset(self, seed, options):
        return {"start": seed if self.sampled_starts else options["init_state"]}, {}


def test_episodes_of_a_suite_with_standard_initial_states_begin_elsewhere():
    """LIBERO's all began at its state 0, the first cell of every evaluation."""
    player = object.__new__(Player)
    player._env, player._seed, player.suite = Standard(), 500, SimpleNamespace(tasks=("one", "two"))
    starts = [player.reset(task, number)[0]["start"] for task in ("one", "two") for number in range(3)]
    assert len(set(starts)) == 6 and min(starts) >= 50
