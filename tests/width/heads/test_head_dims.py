"""Dimensions of heads: found, narrowed to the computation of a smaller module, and refused where heads do more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.layers.attentions import seeded
from cases.models.tiny import tiny_bert, tiny_hf_vit, tiny_images, tiny_inputs, tiny_timm
from torch import Tensor, nn

from prunerecover import Plan, apply_plan, find_groups, find_sites, load_pruned, save_pruned
from prunerecover.model.batches import ModelInputs
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit
from prunerecover.plan.groups import Group
from prunerecover.recovery.reconstruction import fit_layers
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits
from prunerecover.width.heads.layout import HeadLayout

KEPT = 5  # dimensions of 8
KINDS = ("head", "head_dim")


def fused(weight: Tensor) -> Tensor:
    """`(3, heads, size, ...)` of a weight of queries, keys and values."""
    return weight.unflatten(0, (3, 4, -1))


@dataclass(frozen=True)
class Case:
    """Network with its first attention by hand: path, reader of the heads, weights and biases of heads."""

    build: Callable[[], nn.Module]
    inputs: Any
    attention: str
    reads: str
    made: Callable[[Any], tuple[Tensor, Tensor]]


def apart(*names: str) -> Callable[[Any], tuple[Tensor, Tensor]]:
    """Weights and biases of three linears, `(3, heads, size, width)` and `(3, heads, size)`."""
    return lambda attention: tuple(  # type: ignore[return-value]
        fused(torch.cat([getattr(get_module(attention, name), kind) for name in names])) for kind in ("weight", "bias")
    )


CASES = {
    "timm": Case(tiny_timm, tiny_images(), "blocks.0.attn", "proj", lambda a: (fused(a.qkv.weight), fused(a.qkv.bias))),
    "hf_vit": Case(
        tiny_hf_vit, tiny_inputs("hf_vit"), "vit.layers.0.attention", "o_proj", apart("q_proj", "k_proj", "v_proj")
    ),
    "bert": Case(
        tiny_bert,
        tiny_inputs("bert"),
        "bert.encoder.layer.0.attention",
        "output.dense",
        apart("self.query", "self.key", "self.value"),
    ),
    "encoder": Case(
        lambda: seeded(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 24, batch_first=True), 2)),
        torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(3)),
        "layers.0.self_attn",
        "out_proj",
        lambda a: (fused(a.in_proj_weight), fused(a.in_proj_bias)),
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def output(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return found if isinstance(found, Tensor) else found[0]


def smaller(model: nn.Module, inputs: Any, kept: int = KEPT, heads: Sequence[int] = ()) -> list[Edit]:
    """Return edits that keep every head's first dimensions, after the removal of some heads."""
    groups = find_groups(model, inputs, KINDS if heads else "head_dim")
    gone = {one.name: torch.tensor(heads) if one.kind == "head" else torch.arange(kept, one.size) for one in groups}
    return [*groups.edits, *narrow_edits(groups, gone)]


def test_heads_compute_what_the_sliced_weights_do(case: Case) -> None:
    model = case.build()
    attention: Any = get_module(model, case.attention)
    weights, biases = (one.detach()[:, :, :KEPT].clone() for one in case.made(attention))
    apply_edits(model, smaller(model, case.inputs))
    narrowed = get_module(model, case.attention)
    with recording({"all": narrowed, "reads": get_module(narrowed, case.reads)}) as seen:
        output(model, case.inputs)
    x = seen["all.in"]
    q, k, v = torch.einsum("nte,phde->pnhtd", x, weights) + biases[:, None, :, None]
    by_hand = (q @ k.transpose(-1, -2) * KEPT**-0.5).softmax(-1) @ v
    torch.testing.assert_close(seen["reads.in"], by_hand.transpose(1, 2).flatten(2), rtol=1e-4, atol=1e-4)


def test_undone_and_saved_it_is_what_it_was(case: Case, tmp_path: Path) -> None:
    model = case.build()
    edits = smaller(model, case.inputs)
    plan = plan_for(model, edits, method="by hand")
    with unchanged(model):
        undo(model, apply_edits(model, edits).journal)
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert set(plan.removed) == {"head_dim"}
    assert {(one.kept, one.size) for one in plan.kept_groups} == {(KEPT, 8)}
    apply_plan(model, plan)
    opened = load_pruned(save_pruned(model, plan, tmp_path / "pruned"), case.build())
    assert torch.equal(output(opened, case.inputs), output(model, case.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "bert", "encoder"])
def test_heads_and_their_dimensions_go_in_either_order(name: str) -> None:
    case, models = CASES[name], []
    for order in (1, -1):
        model = case.build()
        groups = find_groups(model, case.inputs, KINDS)
        ordered = sorted(groups, key=lambda one: order * KINDS.index(one.kind))
        gone = {one.name: torch.tensor([1]) if one.kind == "head" else torch.arange(KEPT, 8) for one in groups}
        apply_edits(model, [*groups.edits, *narrow_edits(ordered, gone)])
        models.append(model)
    first, second = models
    state = second.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())
    assert torch.equal(output(first, case.inputs), output(second, case.inputs))
    attention: Any = get_module(case.build(), case.attention)
    queries = case.made(attention)[0][0][[0, 2, 3], :KEPT].flatten(0, 1)
    narrow: Any = get_module(first, case.attention)
    held = next(p for p in narrow.parameters() if p.ndim == 2)
    assert torch.equal(held[: 3 * KEPT], queries)


def test_a_module_of_timm_is_the_one_that_timm_makes() -> None:
    from timm.models.vision_transformer import Attention

    model = tiny_timm()
    apply_edits(model, smaller(model, tiny_images(), heads=[3]))
    narrow: Any = model.blocks[0].attn
    made = Attention(32, 3, attn_head_dim=KEPT, qkv_bias=True).eval()
    made.load_state_dict(narrow.state_dict())
    x = torch.randn(2, 7, 32)
    assert torch.equal(narrow(x), made(x))
    said = ("num_heads", "head_dim", "attn_dim", "scale")
    assert [getattr(narrow, name) for name in said] == [getattr(made, name) for name in said]
    narrow.fused_attn = False
    torch.testing.assert_close(narrow(x), made(x))


@pytest.mark.slow
def test_transformers_opens_a_folder_whose_config_says_the_size(tmp_path: Path) -> None:
    from transformers import ViTForImageClassification

    model, inputs = tiny_hf_vit(), tiny_inputs("hf_vit")
    plan = plan_for(model, smaller(model, inputs, heads=[0]), method="by hand")
    apply_plan(model, plan)
    assert (model.config.head_dim, model.config.num_attention_heads) == (KEPT, 3)
    save_pruned(model, plan, tmp_path / "pruned")
    again = ViTForImageClassification.from_pretrained(tmp_path / "pruned").eval()
    assert torch.equal(output(again, inputs), output(model, inputs))


def test_a_config_that_cannot_say_it_stays() -> None:
    model = tiny_bert()
    before = model.config.to_dict()
    apply_edits(model, smaller(model, tiny_inputs("bert")))
    assert model.config.to_dict() == before


def test_a_group_tells_queries_keys_values_and_what_it_costs() -> None:
    (first, *_), inputs = find_sites(tiny_timm(), tiny_images(), "head_dim"), tiny_images(1)
    assert isinstance(first, Group)
    assert (first.name, first.size, first.scaled_by) == ("blocks.0.attn.qkv:head_dim", 8, -0.5)
    layout = HeadLayout.of(first)
    assert [part.offsets[0] for part in layout.weights] == [0, 32, 64]
    assert layout.heads == 4
    assert first.params == 3 * 32 * 33 + 32 * 32
    groups = find_groups(tiny_timm(), inputs, "head_dim")
    model, dense = tiny_timm(), sum(p.numel() for p in tiny_timm().parameters())
    apply_edits(model, narrow_edits(groups, {groups[0].name: torch.arange(4, 8)}))
    assert dense - sum(p.numel() for p in model.parameters()) == groups[0].params // 2


def test_an_attention_of_small_inputs_shows_its_scale() -> None:
    model = tiny_timm()
    model.blocks[0].norm1.weight.data.mul_(1e-3)
    model.blocks[0].norm1.bias.data.mul_(1e-3)
    assert [group.scaled_by for group in find_groups(model, tiny_images(), "head_dim")] == [-0.5] * 4


def test_reconstruction_leaves_weights_that_make_smaller_heads() -> None:
    model, dense, images = tiny_timm(), tiny_timm(), tiny_images(16)
    plan = plan_for(model, smaller(model, images), method="by hand")
    apply_plan(model, plan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit_layers(model, dense, plan, [ModelInputs((images,))])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert not any("qkv" in name for name in changed)
    assert "blocks.0.attn.proj.weight" in changed
