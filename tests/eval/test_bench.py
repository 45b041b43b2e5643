"""``replan bench``: what is counted, and that it says what a user needs to read the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from replan import accel
from replan.eval.bench import WARMUP, Cost, Products, bench, speed_up
from replan.eval.cli import main
from replan.policies.families import BUILT_IN, family
from replan.policies.policy import bundled_policies, load_policy
from replan.policies.untrained import observations, untrained


def counted(run) -> tuple[int, int]:
    with torch.inference_mode(), Products() as mode:
        run()
    return sum(each.flops for each in mode.all), sum(each.bytes for each in mode.all)


def test_a_product_counts_two_operations_per_pair_and_what_it_reads_and_writes():
    x, weight, bias = torch.randn(3, 8), torch.randn(16, 8), torch.randn(16)
    flops, moved = counted(lambda: F.linear(x, weight, bias))
    assert flops == 2 * 3 * 8 * 16
    assert moved == 4 * (3 * 8 + 16 * 8 + 16 + 3 * 16)


def test_attention_counts_both_products():
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 7, 16)
    assert counted(lambda: F.scaled_dot_product_attention(q, k, k))[0] == 2 * 2 * 2 * 5 * 7 * 16


def test_a_convolution_counts():
    image, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 2, 2)
    assert counted(lambda: F.conv2d(image, weight, stride=2))[0] == 2 * 16 * 4 * 3 * 4


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_family_has_sizes_and_rounds_without_training(kind: str, tmp_path: Path):
    sizes = family(kind).sizes
    assert {"full", "layers", "tiny"} <= set(sizes)
    with torch.device("meta"):  # the published widths fit each other
        wide = {size: family(kind).model(sizes[size]) for size in ("full", "layers")}
    full, layers = (dict(model.named_parameters()) for model in wide.values())
    assert set(layers) < set(full)
    same = [name for name in layers if layers[name].shape == full[name].shape]
    assert len(same) >= len(layers) - 2  # all but the tables of words
    policy = untrained(kind, "tiny", tmp_path, words=4)
    costs, _ = bench(policy, {"half": accel.parse("few_step:steps=2")}, observations(policy, 2 * WARMUP + 1))
    dense, half = costs
    assert [cost.method for cost in costs] == ["dense", "half"]
    assert len(dense.ns) == len(half.ns) == 1
    assert dense.error == 0 < half.error
    assert 0 < half.flops < dense.flops


def test_steps_left_out_are_not_counted(tmp_path: Path):
    policy = untrained("pi0", "tiny", tmp_path, words=4)
    half, tenth = accel.parse("few_step:steps=5"), accel.parse("few_step:steps=1")
    costs, machine = bench(policy, {"5": half, "1": tenth}, observations(policy, 2 * WARMUP + 2))
    ten, five, one = (cost.flops for cost in costs)
    step = (ten - five) / 5
    assert (five - one) / 4 == pytest.approx(step)
    assert all(0 < cost.floor_ns < 1e9 for cost in costs)
    # At the roofline of a machine that reads for free, the floor is the arithmetic alone.
    assert costs[0].floor_ns >= 1e9 * ten / machine.flops


def test_a_flash_round_is_measured_with_an_untrained_draft(tmp_path: Path):
    policy = untrained("pi0", "tiny", tmp_path, words=4)
    methods = accel.parse("flash:delta=1000000:gripper=false:max_age=0")
    methods[0].make_files(policy)
    (dense, flash), _ = bench(policy, {"flash": methods}, observations(policy, 2 * WARMUP + 3))
    assert flash.routes["flash"] == 3
    assert flash.flops < dense.flops / 2
    assert {"draft", "verify"} <= set(flash.stages_ns)


def test_a_cache_computes_as_much_as_its_ratio_says(tmp_path: Path):
    policy = untrained("pi0.5", "tiny", tmp_path, words=4)
    (dense, cached), _ = bench(policy, {"c": accel.parse("context_cache:ratio=0.4")}, observations(policy, 9))
    assert cached.extra["ffn_rows"] == pytest.approx(0.4, abs=0.01)
    assert cached.flops < dense.flops


def test_the_speed_up_is_the_median_over_pairs():
    dense, method = Cost("dense", ns=[10, 20, 40, 10, 10, 10]), Cost("m", ns=[10, 10, 10, 5, 5, 5])
    ratio = speed_up(method, dense)
    assert ratio.value == 2
    assert (ratio.low, ratio.high) == (1, 4)
    few = speed_up(Cost("m", ns=[1]), Cost("dense", ns=[3]))
    assert few.value == 3
    assert few.low != few.low


def test_too_few_observations_are_refused(tmp_path: Path):
    policy = untrained("pi0", "tiny", tmp_path, words=4)
    with pytest.raises(ValueError, match="too few"):
        bench(policy, {}, observations(policy, 2 * WARMUP))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", bundled_policies())
def test_every_bundled_policy_reads_what_is_made_up(name: str):
    policy = load_policy(name)
    for observation in observations(policy, 2):
        policy.processor.inputs(observation)


def test_the_command_says_what_was_measured(capsys: pytest.CaptureFixture[str]):
    assert run("--family", "x_vla", "--method", "dp_cache", "--rounds", "1", "--words", "5", "--json") == 0
    out = capsys.readouterr().out
    result = json.loads(out.strip().splitlines()[-1])
    assert result["prompt tokens"] == 5
    assert (result["views"], result["horizon"], result["steps"]) == (2, 16, 10)
    assert [cost["method"] for cost in result["costs"]] == ["dense", "dp_cache"]
    for word in ("untrained weights", "scope", "GFLOP/s", "made up"):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "huge"), "has no size 'huge'"),
        (("--family", "pi9"), "no family reads"),
        (("--family", "pi0", "--policy", "pi0-tiny-conveyor"), "exclude each other"),
        (("--family", "x_vla", "--views", "8"), "8 cameras"),
        (("--family", "pi0", "--words", "200"), "201 words"),
        (("--family", "groot_n1.6", "--method", "flash"), "flash"),
        (("--method", "nonsense"), "nonsense"),
        (("--method", "rmuscle"), "rmuscle needs index.sqlite, which cannot be made up"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
