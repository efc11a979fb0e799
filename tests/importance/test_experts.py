"""Signals of routed experts against finite differences, loops over tokens and experts, and scipy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_mixture
from cases.width.scores import computed, context
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

from prunerecover import Budget, find_groups, plan_width
from prunerecover.importance.data_free import l2_norm
from prunerecover.importance.experts import reap, reap_normalised, routing
from prunerecover.importance.first_order import gate_taylor, r_score
from prunerecover.importance.measuring.token_classes import TOKEN_CLASSES, with_few_classes
from prunerecover.importance.u_score import u_score
from prunerecover.plan.groups import Group, Tap
from prunerecover.width.groups.experts import find_experts

SAMPLES, LENGTH = 6, 7
OF_EXPERTS = ("u_score", "r_score", "gate_taylor", "routing", "reap", "reap_normalised", "magnitude", "random")
Call = tuple[Tensor, Tensor, Tensor]


def batch(samples: int = SAMPLES, seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(3, 61, (samples, LENGTH), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def calls(model: nn.Module, *batches: dict[str, Tensor]) -> dict[str, Call]:
    """Return the inputs of each layer's experts over all batches: tokens, choices, weights."""
    seen: dict[str, list[Any]] = {group.name: [] for group in find_experts(model)}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, own=own: own.append(args))
        for name, own in seen.items()
    ]
    with torch.no_grad():
        for inputs in batches:
            model(**inputs)
    for handle in handles:
        handle.remove()
    return {name: tuple(map(torch.cat, zip(*own, strict=True))) for name, own in seen.items()}  # type: ignore[misc]


def added_by(experts: Any, call: Call, expert: int) -> Tensor:
    """Return the output of an expert for each token, `(tokens, C)`, by its formula."""
    hidden, index, weights = call
    gate, up = (hidden @ experts.gate_up_proj[expert].T).chunk(2, dim=-1)
    out = (experts.act_fn(gate) * up) @ experts.down_proj[expert].T
    return (out * (weights * (index == expert)).sum(1, keepdim=True)).detach()


def rows_of(inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{key: value[i : i + 1] for key, value in inputs.items()} for i in range(len(inputs["input_ids"]))]


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_gate_taylor_is_the_effect_of_scaling_an_expert(name: str) -> None:
    """By central differences, sample by sample: an expert's output is linear in its last matrix.

    The last layer has no router's choice after it that could jump; norms compute in float32, which limits the
    agreement.
    """
    model: Any = tiny_mixture(name)
    inputs, step, group = batch(3), 1e-2, find_experts(model)[-1]
    scores = gate_taylor(context(model, [group], [inputs], loss_of))[group.name]
    down = model.get_submodule(group.name).down_proj.data
    for expert in range(group.size):
        original, slopes = down[expert].clone(), []
        for one in rows_of(inputs):
            values = []
            for factor in (1 + step, 1 - step):
                down[expert] = original * factor
                values.append(float(loss_of(model, one).detach()))
            down[expert] = original
            slopes.append((values[0] - values[1]) / (2 * step))
        assert float(scores[expert]) == pytest.approx(sum(abs(slope) for slope in slopes) / 3, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_routing_is_counted_by_hand(name: str) -> None:
    model, batches = tiny_mixture(name), [batch(4), batch(2, seed=1)]
    shares = routing(context(model, find_experts(model), batches))
    for path, (_, index, _) in calls(model, *batches).items():
        visits = [sum(expert in chosen for chosen in index.tolist()) for expert in range(len(shares[path]))]
        assert shares[path].tolist() == pytest.approx([count / (6 * LENGTH) for count in visits])


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "deepseek_v2"])
def test_reap_is_the_mean_weight_times_norm_over_the_tokens_of_an_expert(name: str) -> None:
    """Normalised weights add up to one where the layer leaves less: those of Mixtral do already."""
    model, batches = tiny_mixture(name), [batch(4), batch(4, seed=1)]
    scored = context(model, find_experts(model), batches)
    plain, normalised = reap(scored), reap_normalised(scored)
    for path, (hidden, index, weights) in calls(model, *batches).items():
        shares = weights / weights.sum(1, keepdim=True)
        for found, own in ((plain, weights), (normalised, shares)):
            for expert, score in enumerate(found[path].tolist()):
                visits = (index == expert).any(1)
                added = added_by(model.get_submodule(path), (hidden, index, own), expert)[visits]
                assert score == pytest.approx(float(added.norm(dim=-1).mean()) if len(added) else 0.0, rel=1e-4)
        assert torch.allclose(plain[path], normalised[path]) == (name == "mixtral")


def test_the_lowest_of_each_layer_go_by_reap() -> None:
    model, batches = tiny_mixture("mixtral"), [batch(4), batch(4, seed=1)]
    how: dict[str, Any] = {"importance": "reap", "allocation": "uniform", "replace": "zero"}
    plan = plan_width(model, Budget(remove={"expert": 4}), batches=batches, **how)
    scores = reap(context(model, find_experts(model), batches))
    gone = {edit.unit: set(edit.gone) for edit in plan.edits if edit.op == "narrow"}
    assert gone == {path: {*own.argsort()[:2].tolist()} for path, own in scores.items()}


@pytest.mark.parametrize("name", ["routing", "reap", "u_score"])
def test_padding_does_not_count(name: str) -> None:
    model, ids = tiny_mixture("mixtral"), batch()["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 4:] = 0
    whole, padded = (
        computed(context(model, find_experts(model), [own], labels=lambda _: torch.arange(SAMPLES) % 2), [name])[name]
        for own in ({"input_ids": ids[:, :4]}, {"input_ids": ids, "attention_mask": mask})
    )
    for path, scores in whole.items():
        torch.testing.assert_close(scores, padded[path], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("name", "by_token"), [("mixtral", False), ("deepseek_v3", True)])
def test_u_score_is_the_distance_of_what_experts_add(name: str, by_token: bool) -> None:
    """Expected: averages over tokens by loops, and scipy's distances of projections."""
    model, inputs = tiny_mixture(name), batch()
    classes = inputs["input_ids"] % 3 if by_token else torch.arange(SAMPLES) % 2
    if by_token:
        classes = torch.where(inputs["input_ids"] < 10, -100, classes)
    scores = u_score(context(model, find_experts(model), [inputs], labels=lambda _: classes, directions=5, seed=4))
    drawn = torch.randn(5, 32, generator=torch.Generator().manual_seed(4))
    directions = drawn / drawn.norm(dim=1, keepdim=True)
    of_token = classes if by_token else classes[:, None].expand(-1, LENGTH)
    for path, call in calls(model, inputs).items():
        for expert in range(len(scores[path])):
            added = added_by(model.get_submodule(path), call, expert).view(SAMPLES, LENGTH, -1) @ directions.T
            seen: dict[int, list[Tensor]] = {}
            for sample in range(SAMPLES):
                for label in of_token[sample].unique().tolist():
                    if label >= 0:
                        seen.setdefault(label, []).append(added[sample][of_token[sample] == label].mean(0))
            stacked = [torch.stack(rows) for rows in seen.values()]
            distances = [
                sum(wasserstein_distance(a[:, d], b[:, d]) for d in range(5)) / 5
                for i, a in enumerate(stacked)
                for b in stacked[i + 1 :]
            ]
            assert float(scores[path][expert]) == pytest.approx(max(distances), rel=1e-4, abs=1e-6)


def test_weights_of_experts_are_scored_without_the_router() -> None:
    model, inputs = tiny_mixture("mixtral"), batch()
    model.requires_grad_(False)
    groups = find_experts(model)
    sizes, sensitive = l2_norm(context(model, groups)), r_score(context(model, groups, [inputs], loss_of))
    model.requires_grad_(True)
    loss_of(model, inputs).backward()
    for group in groups:
        experts: Any = model.get_submodule(group.name)
        weights = (experts.gate_up_proj, experts.down_proj)
        squares = sum(w.detach().double().square().sum((1, 2)) for w in weights)
        torch.testing.assert_close(sizes[group.name], squares.sqrt())
        first_order = sum((w.detach() * w.grad).double().sum((1, 2)) for w in weights).abs()
        torch.testing.assert_close(sensitive[group.name], first_order, rtol=1e-3, atol=1e-7)


def test_all_signals_in_one_pass_leave_no_trace() -> None:
    model, batches = tiny_mixture("deepseek_v3"), [batch(), batch(seed=1)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    runs: list[int] = []
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    together = computed(context(model, find_experts(model), batches, loss=loss_of), OF_EXPERTS)
    assert len(runs) == len(batches)
    handle.remove()
    for name in OF_EXPERTS:
        (alone,) = computed(context(model, find_experts(model), batches, loss=loss_of), [name]).values()
        for path, scores in alone.items():
            torch.testing.assert_close(scores, together[name][path], rtol=1e-5, atol=1e-10)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tokens_of_a_vocabulary_become_equally_frequent_classes() -> None:
    ids = torch.randint(0, 1000, (4, 80), generator=torch.Generator().manual_seed(0))
    ids[0, :5] = -100
    joined = with_few_classes(lambda rows: rows, [ids[:2], ids[2:]])
    labels = torch.cat([joined(ids[:2]), joined(ids[2:])])
    assert (labels[0, :5] == -1).all()
    counts = labels[labels >= 0].bincount()
    assert len(counts) == TOKEN_CLASSES
    assert counts.max() - counts.min() <= 4
    order = ids[labels >= 0].argsort()
    assert (labels[labels >= 0][order].diff() >= 0).all()


def test_routing_is_for_experts_only() -> None:
    model = tiny_llama()
    groups = find_groups(model, batch(1)).groups
    with pytest.raises(ValueError, match="Expected routed experts for 'routing', but 'model.* is a group of kind"):
        routing(context(model, groups, [batch()]))


def test_labels_that_do_not_fit_the_tokens() -> None:
    model = tiny_mixture("mixtral")
    with pytest.raises(ValueError, match="for each of the 42 tokens that reach 'model.layers.0.mlp.experts', but got"):
        u_score(context(model, find_experts(model), [batch()], labels=lambda _: torch.zeros(SAMPLES, 3).long()))
    with pytest.raises(ValueError, match="Expected one integer class per sample"):
        u_score(context(model, find_experts(model), [batch()], labels=lambda _: torch.zeros(SAMPLES, 3)))


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.zeros(3, 2, 2)), nn.Parameter(torch.zeros(3, 2, 2))

    def forward(self, x: Tensor, index: Any = None, weights: Any = None) -> Tensor:
        return x


def test_experts_that_are_called_otherwise() -> None:
    group = Group("0", "expert", 3, (), taps=(Tap("0", of="routing", dim=-1),))
    with pytest.raises(ValueError, match=r"'0' to be called with tokens, .* but got x \(4, 2\)"):
        routing(context(nn.Sequential(Odd()), [group], [torch.zeros(4, 2)]))
