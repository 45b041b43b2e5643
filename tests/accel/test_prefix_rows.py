"""VLA-Cache, FastV, VLA-Pruner, Eventful and ToMe, on every family whose prefix offers rows."""

from types import SimpleNamespace

import pytest
import torch
from replan import accel
from replan.accel import vla_cache
from replan.accel.rows import attention_mass, pixels
from replan.accel.tome import ToMe, matched
from replan.accel.vla_pruner import VLAPruner, distinct
from replan.policies.agent import ChunkAgent
from replan.policies.gemma import rotary
from replan.policies.model import Inputs, Ops, Prefix
from rounds import VISUAL, observations, play

LAYERS = 3
FAMILIES = ["policy", "pi05_policy", "wam"]
every_family = pytest.mark.parametrize("family", FAMILIES)
every_prefix = pytest.mark.parametrize("family", ["policy", "wam"])  # that of pi0.5 is pi0's


DENSE = {}


def dense(policy, moving=True):
    """The dense policy's four chunks, computed once per family."""
    if (policy.name, moving) not in DENSE:
        DENSE[policy.name, moving] = play(policy, "dense", observations(4, moving))[0]
    return DENSE[policy.name, moving]


@every_family
@pytest.mark.parametrize(
    "spec",
    [
        "vla_cache:static=0",
        "vla_cache:relevant=1",
        "fastv:keep=1",
        "vla_pruner:keep=1",
        "eventful:ratio=1",
        "tome:merge=0",
    ],
)
def test_the_limit_is_dense_bit_for_bit(request, family, spec):
    policy = request.getfixturevalue(family)
    limit, rounds, agent = play(policy, spec, observations(4))
    assert torch.equal(limit, dense(policy))
    assert {(each.route, each.extra["refreshed"]) for each in rounds} == {("full", 1)}
    left_out = agent.methods.all[0].activity_counters[0]
    assert agent.counters() == {left_out: 0, "rows_computed": 4 * LAYERS * VISUAL}


@every_family
@pytest.mark.parametrize(
    ("spec", "shares"),
    [
        ("vla_cache:static=0.5:relevant=0:layers=all", [1, 0.5, 0.5, 0.5]),
        ("fastv:layer=1:keep=0.25", [0.5] * 4),
        ("vla_pruner:layer=2:keep=0.25", [1, 1, 1, 0.75]),
        ("eventful:ratio=0.25", [1, 0.25, 0.25, 0.25]),
        ("tome:merge=0.25", [0.75] * 4),
    ],
)
def test_what_is_left_out_is_counted_and_named(request, family, spec, shares):
    policy = request.getfixturevalue(family)
    chunks, rounds, agent = play(policy, spec, observations(4))
    assert [each.extra["refreshed"] for each in rounds] == shares
    assert [each.route for each in rounds] == ["full" if share == 1 else "sparse" for share in shares]
    counted, left_out = agent.counters(), agent.methods.all[0].activity_counters[0]
    assert counted[left_out] == sum(1 - share for share in shares) * LAYERS * VISUAL
    assert counted[left_out] + counted["rows_computed"] == 4 * LAYERS * VISUAL
    assert not torch.equal(chunks, dense(policy))
    agent.reset(3)
    assert set(agent.counters().values()) == {0}


@every_prefix
@pytest.mark.parametrize("spec", ["vla_cache:static=1:relevant=0:layers=all", "eventful:ratio=0"])
def test_nothing_changes_while_nothing_changes(request, family, spec):
    policy = request.getfixturevalue(family)
    cached, rounds, _ = play(policy, spec, observations(4, moving=False))
    torch.testing.assert_close(cached, dense(policy, moving=False), rtol=2e-5, atol=2e-5)
    assert [each.extra["refreshed"] for each in rounds] == [1, 0, 0, 0]


@every_prefix
@pytest.mark.parametrize(
    "specs",
    [
        ["vla_cache:similarity=-1:relevant=0:layers=all:static=1", "vla_cache:relevant=0:layers=all:static=0.5"],
        ["fastv:layer=1:keep=0", "fastv:layer=1:keep=0.7"],
        ["eventful:ratio=0", "eventful:ratio=0.5"],
        ["tome:merge=0.3", "tome:merge=0.05"],
    ],
)
def test_the_error_falls_as_more_is_computed(request, family, specs):
    policy = request.getfixturevalue(family)
    little, more = (float((play(policy, spec, observations(4))[0] - dense(policy)).norm()) for spec in specs)
    assert little > more > 0


@pytest.mark.parametrize("spec", ["vla_cache:relevant=0:layers=all", "eventful", "vla_pruner:layer=1:window=1"])
def test_an_instruction_and_an_episode_start_over(policy, spec):
    frames = [*observations(2), *observations(2, instruction="put the dog in the red bin")]
    _, rounds, agent = play(policy, spec, frames)
    assert [each.route for each in rounds] == ["full", "sparse", "full", "sparse"]
    agent.reset(4)
    agent.act(frames[3])
    assert agent.round.route == "full"


def pairs(context):
    """Keys and values of every layer."""
    return list(zip(context.keys, context.values, strict=True)) if hasattr(context, "keys") else list(context.video)


class Chosen(Ops):
    """Passes on what other ops answer, and keeps the visual rows of every layer and the dense attention masses."""

    def __init__(self, ops):
        self.ops, self.rows_of, self.keys, self.text_mass = ops, [], [], []
        self.keys_values, self.scatter = ops.keys_values, ops.scatter

    def start(self, call):
        self.visual, self.text = call.prefix.visual, call.prefix.embeddings.shape[1] - call.prefix.visual
        self.rows_of.append([])
        self.text_mass.append([])
        self.keys.append([])
        self.ops.start(call)

    def rows(self, layer, x):
        rows = self.ops.rows(layer, x)
        everything = range(self.visual) if rows is None else rows.tolist()
        self.rows_of[-1].append({row for row in everything if row < self.visual})
        return rows

    def attended(self, layer, q, k):
        self.text_mass[-1].append(attention_mass(q[:, -self.text :] if self.text else q, k, self.visual))
        self.keys[-1].append((q, k))
        self.ops.attended(layer, q, k)


def watched(policy, spec, frames):
    """Rounds of one method under a watch over its prefill."""
    agent = ChunkAgent(policy, accel.parse(spec), window=1)
    agent.reset(3)
    agent.methods.prefill_ops = watch = Chosen(agent.methods.prefill_ops)
    for observation in frames:
        agent.act(observation)
    return watch, agent


SQUARE = {0: {16, 24}, 1: {16, 17, 24, 25}, 2: {17, 18, 25, 26}}
"""Tokens of 8 x 8 pixels of the first view that differ from the round before, but for those of the first round."""


def test_vla_cache_reuses_what_has_kept_its_pixels(policy):
    watch, _ = watched(policy, "vla_cache:static=1:relevant=0:layers=all", observations(3))
    assert watch.rows_of == [[set(range(VISUAL))] * LAYERS, [SQUARE[1]] * LAYERS, [SQUARE[2]] * LAYERS]


def test_vla_cache_compares_brightness_and_not_the_distance_from_grey(policy):
    frames = list(observations(2, moving=False))
    for grey, frame in zip((127, 129), frames, strict=True):  # of opposite signs where pixels are from -1 to 1
        frame["wrist"][:] = grey
    watch, _ = watched(policy, "vla_cache:static=1:relevant=0:layers=all", frames)
    assert watch.rows_of[1] == [set()] * LAYERS


@pytest.mark.parametrize("layers", ["all", "entropy"])
@every_prefix
def test_vla_cache_computes_what_the_text_attended_to_in_the_middle_of_the_last_prefill(
    request, family, layers, monkeypatch
):
    policy = request.getfixturevalue(family)
    monkeypatch.setattr(vla_cache, "growing", lambda entropies, growth: [1])
    watch, _ = watched(policy, f"vla_cache:static=1:relevant=0.25:layers={layers}", observations(3, moving=False))
    for number in (1, 2):
        masses = watch.text_mass[number - 1]
        relevant = set(masses[len(masses) // 2].topk(VISUAL // 4).indices.tolist())
        assert watch.rows_of[number] == [relevant] * LAYERS


def test_vla_cache_leaves_out_more_the_deeper_the_layer(policy, monkeypatch):
    asked = []
    monkeypatch.setattr(vla_cache, "growing", lambda *arguments: asked.append(arguments) or [0, 0.25, 0.5])
    watch, _ = watched(policy, "vla_cache:relevant=0:static=1:growth=0.7", observations(3, moving=False))
    assert [[len(rows) for rows in each] for each in watch.rows_of[1:]] == [[VISUAL, 96, 64]] * 2
    assert watch.rows_of[2][2] < watch.rows_of[2][1]  # what a layer computes the one before it has computed
    for number, (entropies, growth) in enumerate(asked):
        assert growth == 0.7 and len(entropies) == LAYERS - 1  # the last layer attends to nothing
        for entropy, (q, k) in zip(entropies, watch.keys[number], strict=True):
            keys = k[:, :, None].expand(-1, -1, q.shape[2], -1)
            weights = torch.einsum("brhd,bshd->bhrs", q, keys).div(q.shape[-1] ** 0.5).softmax(-1).mean(1)
            assert entropy == pytest.approx(float(-(weights * weights.log()).sum(-1).mean()), rel=1e-4)


def test_shares_grow_as_the_entropy_falls_and_never_shrink():
    assert vla_cache.growing([4, 2, 1, 0], 1) == pytest.approx([0, 0.5, 0.75, 1])
    assert vla_cache.growing([4, 2, 1, 0], 0.5) == pytest.approx([0, 0.25, 0.5, 0.75])  # each from the damped one
    assert vla_cache.growing([0, 3, 4, 2], 1) == pytest.approx([0, 0.25, 0.25, 0.5])  # the first layer reuses nothing
    assert vla_cache.growing([1, 1], 1) == [0, 0] and vla_cache.growing([2], 1) == [0]


@every_prefix
def test_fastv_keeps_what_its_layer_attends_to_and_drops_the_rest_for_good(request, family):
    policy = request.getfixturevalue(family)
    watch, agent = watched(policy, "fastv:layer=1:keep=0.25", observations(2))
    for number in range(2):
        mass = attention_mass(*watch.keys[number][0], VISUAL)
        kept = set(mass.topk(VISUAL // 4).indices.tolist())
        assert watch.rows_of[number] == [set(range(VISUAL)), kept, kept]
    text = watch.text
    assert [k.shape[1] for k, _ in pairs(agent.round.call.context)] == [
        VISUAL + text,
        VISUAL // 4 + text,
        VISUAL // 4 + text,
    ]


def test_what_fastv_computes_is_a_prefill_that_goes_on_without_the_dropped_tokens(policy):
    _, rounds, _ = play(policy, "fastv:layer=1:keep=0.25", observations(1))
    call, model = rounds[0].call, policy.model
    x = call.prefix.embeddings
    positions = torch.arange(x.shape[1])[None]
    with torch.inference_mode():
        for number, layer in enumerate(model.vlm):
            q, k, v = layer.project(x, rotary(positions, layer.head_dim, x.dtype))
            torch.testing.assert_close(call.context.keys[number], k)
            torch.testing.assert_close(call.context.values[number], v)
            x = layer.add_ffn(layer.attend(x, q, k, v, None), layer.ffn)
            if number == 0:
                stay = attention_mass(q, k, VISUAL).topk(VISUAL // 4).indices.sort().values
                stay = torch.cat([stay, torch.arange(VISUAL, x.shape[1])])
                x, positions = x[:, stay], positions[:, stay]
        context = model.condition(call.context, call.inputs)
        assert int(context.position) == call.prefix.embeddings.shape[1] + 1  # the actions stay where they were
        one = model.step(call.noise, 1.0, context)
        both = model.step(call.noise.expand(2, -1, -1), 1.0, context.expand(2))  # as a verification does
    torch.testing.assert_close(both, one.expand(2, -1, -1))


@pytest.mark.parametrize("spec", ["fastv:layer=3:keep=0.5", "vla_pruner:layer=3", "vla_pruner:layer=300"])
def test_a_layer_that_the_model_lacks_prunes_nothing_and_the_counter_says_so(policy, spec):
    chunks, rounds, agent = play(policy, spec, observations(4))
    assert torch.equal(chunks, dense(policy))
    assert agent.counters()["rows_pruned"] == 0 and agent.methods.all[0].activity_counters == ("rows_pruned",)


def prefix_call(visual, text=1, width=4, seed=0):
    """What ops read of a round."""
    x = torch.randn(1, visual + text, width, generator=torch.Generator().manual_seed(seed))
    return SimpleNamespace(prefix=Prefix(x, None, visual), instruction="")


def test_vla_pruner_joins_both_attentions_and_weighs_recent_rounds_more():
    method = VLAPruner(layer=1, keep=0.5, window=2, decay=0.5)
    ops = method.prefill_ops()
    for masses in ([8.0, 4, 0, 0], [0.0, 0, 3, 0]):  # halved: 4, 2, 0, 0; together 4, 2, 3, 0
        ops.start(prefix_call(4))
        ops.remember(torch.tensor(masses))
    ops.start(call := prefix_call(4))
    x = torch.tensor([[[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [1.0, 0, 0, 0.1], [9.0, 9, 9, 9]]])
    ops.mass = torch.tensor([2.0, 0, 1, 0])  # the prefill wants 0 and 2, as the actions do
    assert ops.rows(1, x).tolist() == [0, 2, 4]
    ops.mass = torch.tensor([0.0, 0, 1, 2])  # the prefill wants 2 and 3, the actions 0 and 2, and 0 and 3 are alike
    assert ops.rows(1, x).tolist() == [2, 3, 4]
    ops.mass = torch.tensor([0.0, 1, 2, 0])
    ops.start(call)
    ops.remember(torch.tensor([0.0, 9, 0, 0]))  # the oldest is forgotten: 0, 9, 1.5, 0
    x[0, 1, 2] = 3  # were 0 among the candidates, 1 would go for its likeness to 2
    assert ops.rows(1, x).tolist() == [1, 2, 4]


def test_the_more_redundant_candidates_go_first():
    x = torch.tensor([[1.0, 0], [1.0, 0.01], [0, 1.0], [0.4, 1.0], [-1.0, 0]])
    assert distinct(torch.tensor([0, 1, 2, 3, 4]), x, 4).tolist() == [1, 2, 3, 4]
    assert distinct(torch.tensor([0, 1, 2, 3, 4]), x, 3).tolist() == [1, 3, 4]
    assert distinct(torch.tensor([2, 4]), x, 2).tolist() == [2, 4]


def test_vla_pruner_watches_the_layers_that_have_all_tokens(policy):
    frames = list(observations(3))
    _, agent = watched(policy, "vla_pruner:layer=1:window=2:keep=0.25", frames)
    assert all(mass.shape == (VISUAL,) for mass in agent.methods.prefill_ops.ops._rows._history)
    assert 0 < float(agent.methods.all[0].step_ops().mass.sum()) < 1  # of one layer, the state and actions aside


class GatedByHand(Ops):
    """Computes every row, and replaces those that do not pass."""

    def __init__(self, passing):
        self.passing, self.inputs, self.added, self.kept, self.first = passing, {}, {}, {}, True

    def start(self, call):
        self.text, self.now = range(VISUAL, call.prefix.embeddings.shape[1]), {}

    def rows(self, layer, x):
        if self.first or layer not in self.inputs:
            self.now[layer] = set(range(x.shape[1]))
            self.inputs[layer] = x[0].clone()
        else:
            far = [float((x[0, row] - self.inputs[layer][row]).norm()) for row in range(VISUAL)]
            ranked = sorted(range(VISUAL), key=far.__getitem__, reverse=True)
            self.now[layer] = set(ranked[: self.passing]) | set(self.text)
            for row in self.now[layer]:
                self.inputs[layer][row] = x[0, row]
        return torch.arange(x.shape[1])

    def keys_values(self, layer, k, v, rows):
        k, v = k.clone(), v.clone()
        for row in set(range(k.shape[1])) - self.now[layer]:
            k[0, row], v[0, row] = self.kept[layer][0][0, row], self.kept[layer][1][0, row]
        self.kept[layer] = k, v
        return k, v

    def scatter(self, layer, x, computed, rows):
        added = computed - x
        for row in set(range(x.shape[1])) - self.now[layer]:
            added[0, row] = self.added[layer][0, row]
        self.added[layer] = added
        return x + added


@every_prefix
def test_eventful_gates_every_layer_by_its_own_changes(request, family):
    policy = request.getfixturevalue(family)
    by_hand = GatedByHand(passing=VISUAL // 4)
    _, rounds, _ = play(policy, "eventful:ratio=0.25", observations(4))
    for each in rounds:
        with torch.inference_mode():
            by_hand.start(each.call)
            expected = policy.model.prefill(each.call.prefix, by_hand)
        by_hand.first = False
        torch.testing.assert_close(pairs(each.call.context), pairs(expected), rtol=1e-4, atol=1e-4)


def test_tome_pairs_the_closest_of_the_even_with_the_odd():
    keys = torch.tensor([[1.0, 0], [0, 1.0], [0.9, 0.1], [1.0, 0.05], [0.0, -1]])
    gone, into = matched(keys, 1)
    assert (gone.tolist(), into.tolist()) == ([0], [3])
    gone, into = matched(keys, 9)
    assert set(gone.tolist()) == {0, 2, 4} and into[gone.tolist().index(2)] == 3
    assert [each.tolist() for each in matched(keys[:1], 1)] == [[], []]


def test_tome_merges_into_means_and_attention_counts_every_part():
    ops, call = ToMe(merge=0.25).prefill_ops(), prefix_call(4)
    ops.start(call)
    x, keys = call.prefix.embeddings, torch.tensor([[[1.0, 0], [1.0, 0.01], [0, 1.0], [1.0, 0.3], [5.0, 5]]])
    rows = ops.rows(0, x)
    k, _ = ops.keys_values(0, keys, keys, rows)
    assert torch.equal(k, keys)
    x = ops.scatter(0, x, x[:, rows] + 1, rows)  # a layer that adds 1
    mean = call.prefix.embeddings[0, :2].mean(0) + 1
    torch.testing.assert_close(x[0, 1], mean)

    rows = ops.rows(1, x)
    assert rows.tolist() == [1, 2, 3, 4]
    own = torch.tensor([[[2.0, 0], [2.0, 0.01], [0, 2.0], [1.0, 1.0]]])
    k, v = ops.keys_values(1, own, -own, rows)
    query, sizes = torch.tensor([0.3, -0.2]), torch.tensor([2.0, 1, 1, 1])
    proportional = (own[0] @ query + sizes.log()).softmax(0) @ -own[0]
    torch.testing.assert_close((k[0] @ query).softmax(0) @ v[0], proportional)

    x = ops.scatter(1, x, x[:, rows], rows)  # of 1, 2 and 3 the first is merged into the second, with both its parts
    assert ops.rows(2, x).tolist() == [2, 3, 4]
    torch.testing.assert_close(x[0, 2], call.prefix.embeddings[0, :3].mean(0) + 1)


@every_prefix
def test_a_merged_token_stands_in_the_place_of_its_parts(request, family):
    policy = request.getfixturevalue(family)
    watch, agent = watched(policy, "tome:merge=0.25", observations(1))
    sizes = [len(rows) for rows in watch.rows_of[0]]
    assert sizes == [VISUAL, 3 * VISUAL // 4, VISUAL // 2]
    last, _ = pairs(agent.round.call.context)[-1]
    assert last.shape[1] == VISUAL + watch.text
    assert len(last[0, :VISUAL].flatten(1).unique(dim=0)) == VISUAL // 2


@pytest.mark.parametrize(
    "spec", ["fastv:layer=1+few_step", "vla_cache+context_cache", "eventful+context_cache:ratio=0.5"]
)
def test_they_compose_with_methods_at_other_seams(policy, spec):
    chunks, rounds, agent = play(policy, spec, observations(4))
    assert torch.isfinite(chunks).all()
    assert all(agent.counters()[name] > 0 for each in agent.methods.all[1:] for name in each.activity_counters)


@pytest.mark.parametrize("method", ["fastv", "vla_pruner", "tome"])
def test_what_is_gone_has_no_output_to_keep(method):
    with pytest.raises(ValueError, match=f"'{method}' and 'context_cache' cannot be combined: .*'prefill_ffn' seam"):
        accel.parse(f"{method}+context_cache")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vla_cache:static=1.5", "vla_cache takes a share from 0 to 1 as static, got 1.5"),
        ("vla_cache:relevant=nan", "as relevant, got nan"),
        ("vla_cache:similarity=2", "a cosine from -1 to 1, got 2"),
        ("vla_cache:growth=-1", "vla_cache takes a share from 0 to 1 as growth, got -1"),
        ("vla_cache:layers=deep", "layers must be 'entropy' or 'all', got 'deep'"),
        ("fastv:keep=-0.1", "fastv takes a share from 0 to 1 as keep, got -0.1"),
        ("fastv:layer=0", "fastv needs at least one layer in front of the pruning to score tokens, got 0"),
        ("vla_pruner:layer=0", "vla_pruner needs at least one layer"),
        ("vla_pruner:window=0", "window must be at least 1 and decay from 0 to 1, got 0 and 0.8"),
        ("vla_pruner:decay=nan", "got 3 and nan"),
        ("eventful:ratio=2", "eventful takes a share from 0 to 1 as ratio, got 2"),
        ("tome:merge=-1", "tome takes a share from 0 to 1 as merge, got -1"),
    ],
)
def test_options_out_of_range_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


def test_nothing_is_kept_where_nothing_may_stay(policy):
    for spec in ("fastv:layer=1:keep=0", "vla_pruner:layer=1:keep=0:window=1", "tome:merge=1"):
        chunks, _, _ = play(policy, spec, observations(2))
        assert torch.isfinite(chunks).all()


def test_pixels_of_a_camera_that_is_missing_are_left_out(policy):
    inputs = policy.processor.inputs(next(observations(1)))
    one = Inputs(inputs.images, inputs.tokens, inputs.token_mask, inputs.state, torch.tensor([[False, True]]))
    with torch.inference_mode():
        call = SimpleNamespace(inputs=one, prefix=policy.model.encode(one))
        assert torch.equal(pixels(policy.model, call), policy.model.patches(inputs.images)[0, VISUAL // 2 :])
