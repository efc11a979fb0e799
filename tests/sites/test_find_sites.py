"""Sites: units of depth and groups of width in a single list, with their contents, and refusals."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.engine import batch_of, build, unchanged
from cases.models.tiny import tiny_images, tiny_llama, tiny_timm
from cases.sampling import one_in
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Site, Sites, find_groups, find_sites, find_units
from prunerecover.cost.macs import count_macs
from prunerecover.model.batches import ModelInputs
from prunerecover.model.copies import share_copy
from prunerecover.plan.kinds import DEPTH_KINDS, KINDS
from prunerecover.refusal import Refusal
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.groups.narrow_edits import narrow_edits

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


def encoder(blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(blocks)]
    return nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 3)).eval()


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).eval()


def test_sites_are_the_units_and_the_groups() -> None:
    model = encoder()
    with unchanged(model):
        sites = find_sites(model, X)
    units, groups = find_units(model, X, DEPTH_KINDS), find_groups(model, X)
    assert sites.units == units == tuple(site for site in sites if site.kind in DEPTH_KINDS)
    assert sites.groups == groups
    assert sites == (*units, *groups)
    assert all(isinstance(site, Site) for site in sites)
    assert sites.of_kind("head", "block") == (*units.of_kind("block"), *groups.of_kind("head"))
    assert {**units.refused}.keys() | {**groups.refused}.keys() == sites.refused.keys()


def test_a_group_holds_what_goes_with_its_units() -> None:
    """Checks, for all but one unit of each group in turn, the parameters and MACs against a narrowed network."""
    model = perceptron()
    for group in find_groups(model, X):
        narrowed = share_copy(model)
        apply_edits(narrowed, narrow_edits((group,), {group.name: torch.arange(1, group.size)}))
        params = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in narrowed.parameters())
        macs = count_macs(model, X) - count_macs(narrowed, X)
        assert (group.params, group.macs) == (
            params * group.size // (group.size - 1),
            macs * group.size // (group.size - 1),
        )


def test_sites_know_their_block() -> None:
    opt, tokens = build("opt"), batch_of("opt")
    for model, x, path in (
        (encoder(), X, r"[123]"),
        (tiny_timm(), tiny_images(), r"blocks\.\d"),
        (opt, tokens, r"model\.decoder\.layers\.\d"),
    ):
        for site in find_sites(model, x).of_kind("block", "attention", "mlp", "activation", "head", "neuron"):
            inside = re.match(rf"{path}(?=\.|$)", site.name)
            assert site.block == (inside[0] if inside else "")


def test_units_and_groups_say_what_they_touch() -> None:
    sites = find_sites(perceptron(), X, ("layer", "neuron"))
    assert {site.name: site.touches for site in sites.units} == {"0": ("0", "1"), "2": ("2", "3")}
    assert [site.touches for site in sites.groups] == [
        ("0.weight", "0.bias", "2.weight"),
        ("2.weight", "2.bias", "4.weight"),
    ]
    assert [(site.size, site.kind) for site in sites] == [(1, "layer"), (1, "layer"), (6, "neuron"), (10, "neuron")]


def test_the_list_says_how_many_there_are_and_why_others_are_none() -> None:
    sites = find_sites(perceptron(), X, ("layer", "neuron"))
    assert repr(sites) == "<Sites: 2 layers, 16 neurons, 1 refused>"
    text = str(sites).splitlines()
    assert text[0] == "Sites: 2 layers, 16 neurons"
    assert text[1].split() == ["site", "kind", "units", "parameters", "MACs", "block"]
    assert text[4].split() == ["0", "neuron", "6", "114", f"{20 * 6 * (8 + 10):,}"]
    assert text[6] == "Refused: 1"
    assert text[8].split(maxsplit=2)[:2] == ["4", "1"]
    assert sites.refused["4"] in text[8]
    many = str(find_sites(encoder(6), X)).splitlines()
    assert len(many) <= 12
    assert any(line.startswith("… and") for line in many)
    assert str(find_sites(nn.Linear(8, 3), X)).startswith("Sites: none\nRefused: 1\n")


def test_what_is_refused_for_one_reason_stands_in_one_line() -> None:
    head = nn.ModuleList(nn.Linear(8, 3) for _ in range(5))

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.heads = nn.Linear(8, 8), head

        def forward(self, x: Tensor) -> list[Tensor]:
            x = self.stem(x).relu()
            return [own(x) for own in self.heads]

    (line,) = (line for line in str(find_sites(Heads(), X, "layer")).splitlines() if line.startswith("heads.0"))
    assert line.split(maxsplit=4)[:4] == ["heads.0,", "heads.1,", "…", "5"]


def test_a_list_of_sites_is_frozen_and_goes_through_pickle() -> None:
    sites = find_units(encoder(), X)
    for other in (pickle.loads(pickle.dumps(sites)), copy.copy(sites)):
        assert other == sites
        assert (type(other), other.refused) == (Sites, sites.refused)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sites.refused = {}  # type: ignore[misc]


LOADER = DataLoader(TensorDataset(X, torch.zeros(4)), batch_size=4)


@pytest.mark.parametrize(
    "batches",
    [[X], (X, torch.zeros(4)), [(X, torch.zeros(4))], [[X, torch.zeros(4)]], LOADER, iter([X]), ModelInputs((X,))],
    ids=["list", "labelled", "list of labelled", "collated", "loader", "generator", "inputs"],
)
def test_batches_may_be_a_loader_or_one_batch(batches: Any) -> None:
    model = perceptron()
    assert find_sites(model, batches) == find_sites(model, X)


def test_names_in_ignore_may_be_of_either() -> None:
    model = encoder()
    every = find_sites(model, X)
    kept = find_sites(model, X, ignore=("1", "*.linear1"))
    assert kept == tuple(site for site in every if site.name != "1" and not site.name.endswith(".linear1"))
    with pytest.raises(ValueError, match=r"ignore to match sites such as .*, but '7\.\*' matches none. List the names"):
        find_sites(model, X, ignore="7.*")
    with pytest.raises(ValueError, match=r"Expected some sites outside ignore=\['\*'\], but all \d+ are ignored"):
        find_sites(model, X, ignore="*")


def test_the_former_order_of_arguments_is_taken_with_a_warning() -> None:
    model = encoder()
    units = find_units(model, X, ("block", "layer"))
    with pytest.warns(
        FutureWarning, match=r"Use find_units\(model, batches, kinds\): find_units\(model, kinds, batches\) ends"
    ):
        assert find_units(model, ("block", "layer"), X) == units  # type: ignore[arg-type]
    with pytest.warns(FutureWarning, match="ends with version") as warned:
        assert find_units(tiny_timm(), "attention") == find_units(tiny_timm(), kinds="attention")
    assert warned[0].filename == __file__


def test_a_network_that_is_known_by_its_parts_is_not_run() -> None:
    model = tiny_llama()
    model.forward = None  # type: ignore[method-assign]
    assert {site.macs for site in find_units(model)} == {0}
    assert find_units(model) == find_sites(model, kinds=("block", "attention", "mlp"))


WRONG: dict[str, tuple[Any, str]] = {
    "width": (X[..., :3], "batches that Sequential can be called with, but .* raised RuntimeError"),
    "keyword": ({"pixels": X}, "batches that Sequential can be called with, but .* raised TypeError"),
    "nothing": (None, "Expected batches, or one batch, to find what may go in Sequential, but got none"),
    "none left": ([], "Expected at least one batch to look at, but got none. Was a generator consumed"),
    "kind": (X, "Expected kinds among block, .*, hidden, but got 'filter'"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_cannot_be_looked_at_is_explained(name: str) -> None:
    batches, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        find_sites(perceptron(), batches, ("layer", "filter") if name == "kind" else None)


def test_a_batch_of_an_unknown_form_is_explained() -> None:
    with pytest.raises(TypeError, match="Expected each batch to be a tensor, .* but got int"):
        find_sites(perceptron(), 3)


def test_activations_that_a_family_lacks_are_refused_with_a_way_out() -> None:
    sites = find_sites(tiny_llama(), kinds=("attention", "mlp", "activation", "block"))
    reasons = {reason for name, reason in sites.refused.items()}
    assert len(sites.refused) == len(sites.of_kind("mlp"))
    assert all(re.match("its activation stays: .*; remove the attention or the MLP", reason) for reason in reasons)
    with pytest.raises(Refusal, match="to have removable activations"):
        find_units(tiny_llama(), kinds=("attention", "activation"))


def test_groups_that_are_counted_or_linked_are_refused_by_name() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(x / x.shape[-1])

    sites = find_sites(Counting(), X, "neuron")
    assert not sites.groups
    assert sites.refused["first"].startswith("its neurons are counted by div in the model itself; divide by a number")
    with pytest.raises(Refusal, match="Operations that count units: div in the model itself"):
        find_groups(Counting(), X)


class Pooled(nn.Module):
    """Heads along the batch, where a convolution pools keys and values; sizes are literals."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.pool, self.proj = nn.Linear(8, 24), nn.Conv1d(4, 4, 2, stride=2, groups=4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2).flatten(0, 1) for part in self.qkv(x).chunk(3, -1))
        k, v = (self.pool(part.transpose(1, 2)).transpose(1, 2) for part in (k, v))
        x = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.proj(x.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2))


class Queries(nn.Module):
    """Decoder whose first attention sees parameters alone, and another that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 3, 8))
        self.first, self.second, self.third = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.queries.expand(len(x), -1, -1)
        q = q + self.first(q, q, q)[0]
        return self.head(self.norm(q + self.second(q, x, x)[0]))


def test_no_attention_is_left_out_in_silence() -> None:
    torch.manual_seed(0)
    pooled = find_sites(nn.Sequential(Pooled(), nn.Linear(8, 2)).eval(), X[:, :4], "head")
    assert not pooled
    assert pooled.refused["0"].startswith("its heads stay: ")
    assert pooled.refused["0"].endswith("; remove the attention as a whole")
    queries = find_sites(Queries().eval(), X, "head")
    assert {site.name for site in queries} == {"second"}
    assert queries.refused["first"].startswith("its heads stay: it multiplies nothing that depends on the inputs; ")
    assert queries.refused["third"].startswith("its heads stay: the example does not call it; ")


LISTED = ("resnet18", "t5", "swin", "encoder", "shared", "mixtral", "detector", "1-d")


@pytest.mark.parametrize("name", one_in(4, LISTED))
def test_every_refusal_names_the_cause_and_a_way_out(name: str) -> None:
    model, batch = ARCHITECTURES[name]()
    refused = find_sites(model, batch, [kind for kind in KINDS if kind not in ("expert", "hidden")]).refused
    assert refused
    for path, reason in refused.items():
        cause, _, way_out = reason.partition("; ")
        assert len(cause.split()) > 3, (path, reason)
        assert len(way_out.split()) > 1, (path, reason)
