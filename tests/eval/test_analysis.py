"""``replan analyze``: rounds are compared with the right ones, and the shares are those of planted states."""

from __future__ import annotations

import json

import pytest
import torch
from replan.eval.analysis import SHARES, Seen, Watching, analyse, record
from replan.eval.cli import main
from replan.eval.registry import Registry
from replan.policies.agent import ChunkAgent
from replan.policies.policy import load_policy
from replan.policies.untrained import observations, untrained

TOKENS, WIDTH, NEURONS = 10, 4, 8


def seen(task: str, episode: int, query: list[float], moved: int = 0, first: int = 0) -> Seen:
    """A round in which the first ``moved`` tokens differ, and four neurons from ``first`` on contribute most."""
    x = torch.ones(TOKENS, WIDTH)
    x[:moved] += torch.arange(moved, 0, -1.0)[:, None]
    scores = torch.ones(4, 1, NEURONS)
    scores[..., first : first + 4] = 3
    return Seen(task, episode, 0.0, torch.tensor(query), [(x, 2 * x)], scores)


def test_a_round_is_compared_with_the_most_similar_one_of_its_task_and_of_another():
    rounds = [
        seen("a", 0, [1.0, 0.0]),
        seen("a", 1, [0.9, 0.1], first=0),
        seen("a", 1, [0.0, 1.0], first=4),
        seen("b", 0, [0.7, 0.7], first=2),
    ]
    rounds[1].progress, rounds[2].progress = 0.05, 0.5
    result = analyse(rounds, (0, 2))
    # The first looks like the second and shares all neurons with it; the second's alike is the first.
    assert result.places[:2] == [(0.0, 0.05), (0.05, 0.0)]
    assert result.overlap["same task"].mean == pytest.approx((1 + 1 + 0) / 3)
    assert result.overlap["round before"].mean == 0  # only the third has a round before it in its episode
    assert result.overlap["other task"].low == pytest.approx(0.5)
    assert result.diagonal == pytest.approx(2 / 3)


def test_coverage_is_what_the_tokens_that_moved_most_hold():
    result = analyse([seen("a", 0, [1.0]), seen("a", 1, [1.0], moved=2)], (0,))
    squares = [4.0, 1.0]  # the first token moved by 2, the second by 1
    best = result.tokens["output change (best)"]
    assert best[:2] == pytest.approx([squares[0] / 5, 1.0])
    assert result.tokens["input change"][-1] == 1
    assert all(a <= b + 1e-9 for a, b in zip(result.tokens["input change"], best, strict=True))


def test_neurons_are_ranked_by_their_contribution():
    result = analyse([seen("a", 0, [1.0]), seen("a", 1, [1.0])], (0, 2))
    assert result.neurons[SHARES.index(0.5)] == pytest.approx(12 / 16)
    assert result.shared == pytest.approx(1)
    one = seen("a", 0, [1.0])
    one.scores[1] = one.scores[1].flip(-1)  # the steps of a group have nothing in common: the group's neurons hold less
    assert analyse([one, seen("a", 1, [1.0])], (0, 2)).shared < 1


def test_watching_changes_nothing(tmp_path):
    policy = untrained("pi0", "tiny", tmp_path, words=3)
    watched, plain = ChunkAgent(policy, [Watching()]), ChunkAgent(policy)
    for observation in observations(policy, 2):
        assert (watched.act(observation) == plain.act(observation)).all()


def test_a_model_without_neurons_to_watch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="watching"):
        ChunkAgent(untrained("x_vla", "tiny", tmp_path, words=3), [Watching()])


def test_on_the_conveyor_episodes_of_a_task_have_more_in_common_than_those_of_two(tmp_path, capsys):
    arguments = ["analyze", "--task", "dog-red,brush-blue", "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    for name in ("inputs", "outputs", "overlap"):
        assert result[name]["same task"]["mean"] > result[name]["other task"]["mean"]
    # The paper's finding: what changed most on the way in is what changed most on the way out.
    at = SHARES.index(0.4)
    assert result["tokens"]["input change"][at] > 0.6
    assert result["neurons"][SHARES.index(0.5)] > 0.7
    assert json.loads((tmp_path / "analysis.json").read_text()) == result
    assert (tmp_path / "coverage.svg").read_text().startswith("<?xml")


def test_recorded_rounds_are_those_of_the_dense_policy():
    rounds, anchors = record(Registry(), "conveyor", None, "dog-red", 1, 600)
    assert anchors == (0, 5)
    assert rounds[0].progress == 0 and rounds[-1].progress == pytest.approx(1 - 1 / len(rounds))
    model = load_policy("pi0-tiny").model
    assert rounds[0].scores.shape == (10, model.config.depth, model.config.expert_mlp)
    assert len(rounds[0].states) == model.config.depth - 1  # the last layer gives keys and values only


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suite", "nowhere"), "unknown suite"),
        (("--task", "nothing"), "unknown task"),
        (("--policy", "nobody"), "unknown policy"),
        (("--episodes", "1"), "1 is not in the range"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["analyze", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
