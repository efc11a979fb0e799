"""Narrower residual streams, with norms over the remaining features alone; plans of them, and what configs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.layers.attentions import TOKENS, encoder, seeded, vision_transformer
from cases.layers.hidden import HiddenRoundTrip
from cases.models import tiny
from cases.models.decoders import DECODERS
from cases.models.tiny import tiny_bert, tiny_images, tiny_inputs, tiny_llama, tiny_mixture, tiny_timm
from cases.models.width import BUILD, images
from cases.sampling import first, one_in
from cases.width.round_trip import RoundTripChecks
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, find_groups, load_pruned, plan_width, save_pruned
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.cost.macs import count_macs

ALL = ("head", "neuron", "hidden")
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Between(nn.Module):
    """Encoder of PyTorch between two linears, the only readers of the stream."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.first, self.encoder, self.last = nn.Linear(16, 16), encoder(**settings), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(self.first(x)).mean(1))


def maker(name: str) -> Callable[[], nn.Module]:
    return tiny.BUILD[name] if name in tiny.BUILD else DECODERS[name].build


def swin(name: str) -> HiddenRoundTrip:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return BUILD[name]()[0]

    return HiddenRoundTrip(build, images(32))


NETWORKS: Mapping[str, HiddenRoundTrip] = {
    "timm": HiddenRoundTrip(tiny.tiny_timm, IMAGES),
    "timm, distilled": HiddenRoundTrip(lambda: tiny.tiny_timm(distilled=True), IMAGES),
    "Swin of timm": swin("timm_swin"),
    "Swin of torchvision": swin("torchvision_swin"),
    "ViT of torchvision": HiddenRoundTrip(vision_transformer, IMAGES),
    "encoder": HiddenRoundTrip(lambda: seeded(Between()), TOKENS),
    "encoder, norms first": HiddenRoundTrip(lambda: seeded(Between(norm_first=True)), TOKENS),
    "timm, all kinds": HiddenRoundTrip(tiny.tiny_timm, IMAGES, ALL),
    "encoder, all kinds": HiddenRoundTrip(lambda: seeded(Between()), TOKENS, ALL),
    "llama, all kinds": HiddenRoundTrip(tiny.tiny_llama, tiny.tiny_inputs("llama"), ALL),
    **{
        name: HiddenRoundTrip(maker(name), tiny_inputs(name))
        for name in (*tiny.TRANSFORMERS, "gemma2", "phi", "gpt_neox", "cohere", "olmo2")
    },
}


@pytest.fixture(params=one_in(4, NETWORKS))
def network(request: pytest.FixtureRequest) -> HiddenRoundTrip:
    return NETWORKS[request.param]


class TestRoundTrip(RoundTripChecks):
    pass


class Stream(nn.Module):
    """Two residual branches around `function`."""

    def __init__(self, function: Callable[[Tensor], Tensor] = lambda h: h) -> None:
        super().__init__()
        self.first, self.norm, self.branch = nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.second, self.head, self.function = nn.Linear(8, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = self.function(h + self.branch(self.norm(h)))
        return self.head(h + self.second(self.norm(h)))


def sinusoids(h: Tensor) -> Tensor:
    return h + torch.arange(h.shape[-2])[:, None] / 10.0 ** torch.arange(8.0)


REFUSED: dict[str, tuple[nn.Module, Any, str]] = {
    "output": (tiny_bert().bert, tiny_inputs("bert"), "'encoder.layer.0.attention.output.dense', .* model's out"),
    "input": (encoder(), TOKENS, r"'layers.0.self_attn.out_proj', 'layers.0.linear2' by add in"),
    "experts": (tiny_mixture("mixtral"), tiny_inputs("text"), "'model.layers.0.self_attn.o_proj' by _grouped_mm"),
    "picked": (Stream(lambda h: h + h[..., 3:4]), TOKENS, r"'first', .* by slice \(`.*h\[..., 3:4\]"),
    "table that is computed": (Stream(sinusoids), TOKENS, r"'first', .* by add \(`return h \+ torch.arange"),
    "fixed": (Stream(lambda h: h.view(2, 6, 8)), TOKENS, r"'first' by code that fails with fewer of them \(RuntimeErr"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_keeps_a_stream_is_named(name: str) -> None:
    model, inputs, why = REFUSED[name]
    with pytest.raises(ValueError, match=f"to have groups of kind hidden, but it has .*{why}"):
        find_groups(model.eval(), inputs, "hidden")


def test_tied_embeddings_are_cut_once() -> None:
    (group,) = find_groups(tiny_llama(tie_word_embeddings=True), tiny_inputs("llama"), "hidden").groups
    tables = [part for part in group.slices if "embed" in part.tensor or "lm_head" in part.tensor]
    assert [(part.tensor, part.dim) for part in tables] == [("model.embed_tokens.weight", 1)]


def test_norms_without_weights_follow() -> None:
    """Only `normalized_shape` shows the width of such a norm."""
    network = Stream()
    network.norm = nn.LayerNorm(8, elementwise_affine=False)
    (group,) = find_groups(network, TOKENS, "hidden").groups
    assert [(setting.module, setting.attribute) for setting in group.settings] == [("norm", "normalized_shape")]


def test_streams_of_convolutions_stay_channels() -> None:
    """A norm over the channels of a ConvNeXt leaves them ordinary channels."""

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.LayerNorm(8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).movedim(1, -1)
            return self.head((h + self.second(self.norm(h))).mean((1, 2)))

    (group,) = find_groups(Convolutions(), torch.randn(2, 3, 8, 8), ("channel", "hidden")).groups
    assert group.kind == "channel"


# Plans

MANY = tiny_images(16, seed=3)
BATCHES = [(MANY, torch.arange(16) % 5)]
HIDDEN = ("hidden",)
QUICK: Any = {"importance": "magnitude", "replace": "zero"}


def text(name: str) -> list[dict[str, torch.Tensor]]:
    ids = tiny_inputs(name, 8)
    return [{**ids, "labels": ids["input_ids"]}]


def halved(name: str, **settings: Any) -> tuple[Any, Any]:
    """Return a language model with half of its hidden size, and the plan."""
    model = maker(name)()
    plan = plan_width(model, Budget(remove={"hidden": 16}), batches=text(name), kinds=HIDDEN, **settings)
    apply_plan(model, plan)
    return model, plan


@pytest.mark.parametrize("budget", [Budget(macs=0.3), Budget(params=0.3)])
def test_a_budget_is_met_by_less_than_a_feature(budget: Budget) -> None:
    def costs() -> tuple[int, int]:
        return count_macs(model, MANY[:1]), sum(p.numel() for p in model.parameters())

    model = tiny_timm()
    dense = costs()
    plan = plan_width(model, budget, batches=BATCHES, kinds=HIDDEN, **QUICK)
    apply_plan(model, plan)
    assert (plan.result.macs, plan.result.params) == costs()
    number = 0 if budget.macs else 1
    assert 0.7 - 1 / 32 < costs()[number] / dense[number] <= 0.7


@pytest.mark.slow
def test_what_features_count_for_beside_other_kinds_is_tried(tmp_path: Path) -> None:
    model = tiny_timm()
    plan = plan_width(model, Budget(macs=0.5), batches=BATCHES, kinds=("head", "neuron", "hidden"))
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, MANY[:1]) <= 0.5 * count_macs(tiny_timm(), MANY[:1])
    assert set(plan.evidence["rates"]) == {"head", "neuron", "hidden"}
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"), tiny_timm())
    assert torch.equal(again.eval()(MANY), model(MANY))


def test_dead_features_go_first() -> None:
    """Features with hardly any writers or readers have the lowest scores."""
    model = tiny_timm()
    dead = [3, 17, 30]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.shape[-1] == 32 and name.endswith(("qkv.weight", "fc1.weight", "head.weight")):
                parameter[:, dead] *= 1e-4
    plan = plan_width(model, Budget(remove={"hidden": 3}), batches=BATCHES, kinds=HIDDEN)
    assert plan.removed == {"hidden": tuple(f"patch_embed.proj[{number}]" for number in dead)}


def test_weights_take_over_for_what_goes() -> None:
    """Copies of other features can be removed exactly, but for their part in the norms' statistics."""
    changes = {}
    for replace in ("zero", "calibrated"):
        model = tiny_timm()
        dense = model(MANY)
        plan = plan_width(model, Budget(remove={"hidden": 8}), batches=BATCHES, kinds=HIDDEN, replace=replace)
        apply_plan(model, plan)
        changes[replace] = (model(MANY) - dense).square().mean()
        assert bool(plan.tensors) == (replace == "calibrated")
    assert changes["calibrated"] < changes["zero"]


@pytest.mark.slow
def test_tied_tables_take_nothing_over() -> None:
    """Compensation in a tied head would change the embeddings."""
    model, plan = halved("qwen3")
    assert plan.tensors
    assert not any("embed" in name or "lm_head" in name for name in plan.tensors)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (61, 16)


@pytest.mark.parametrize("name", first(3, ["llama", "hf_vit", "opt", "qwen3", "phi"]))
def test_configs_say_the_hidden_size_where_they_can(name: str, tmp_path: Path) -> None:
    if name == "hf_vit":
        model: Any = maker(name)()
        batches = [{**tiny_inputs(name, 8), "labels": torch.arange(8) % 5}]
        plan = plan_width(model, Budget(remove={"hidden": 16}), batches=batches, kinds=HIDDEN, **QUICK)
        apply_plan(model, plan)
    else:
        model, plan = halved(name, **QUICK)
    inputs = tiny_inputs(name)
    save_pruned(model, plan, tmp_path / "pruned")
    if name == "opt":  # its code takes the size of a head for a share of the hidden size
        assert model.config.hidden_size == 32
        assert standard_class(tmp_path / "pruned") is None
        again: Any = load_pruned(tmp_path / "pruned")
    else:
        assert (model.config.hidden_size, model.config.head_dim) == (16, 8)
        again = type(model).from_pretrained(tmp_path / "pruned").eval()
    for parameter in again.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
        parameter.data = parameter.data.clone()
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_embeddings_scaled_by_the_hidden_size_keep_their_scale(tmp_path: Path) -> None:
    """Gemma's code would scale embeddings by the root of the smaller size, so the config's size stays the same."""
    model, plan = halved("gemma", **QUICK)
    assert model.config.hidden_size == 32
    again: Any = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(again.eval()(**tiny_inputs("gemma")).logits, model(**tiny_inputs("gemma")).logits)
