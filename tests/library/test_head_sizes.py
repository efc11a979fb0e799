"""Smaller heads in closed form: exact where nothing is lost, and the best there is where something is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from cases.layers.attentions import seeded
from cases.models.tiny import BUILD, tiny_bert, tiny_gpt2, tiny_hf_vit, tiny_images, tiny_inputs, tiny_timm
from torch import Tensor, nn

from prunerecover import find_groups
from prunerecover.library.head_sizes import SmallerHeads, smaller_heads
from prunerecover.model.hooks import recording
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import Edit, Refit
from prunerecover.plan.groups import Group
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.width.groups.narrow_edits import narrow_edits
from prunerecover.width.heads.layout import HeadLayout, entries_of, with_entries

Build = Callable[[], nn.Module]
ALL = (0, 1, 2, 3)


def encoder() -> nn.Module:
    return seeded(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 24, batch_first=True), 2))


TOKENS = torch.randn(8, 7, 32, generator=torch.Generator().manual_seed(3))
NETWORKS: dict[str, tuple[Build, Any]] = {
    "timm": (tiny_timm, tiny_images(8)),
    "timm without bias": (lambda: tiny_timm(qkv_bias=False, proj_bias=False), tiny_images(8)),
    "hf_vit": (tiny_hf_vit, tiny_inputs("hf_vit", 8)),
    "bert": (tiny_bert, tiny_inputs("bert", 8)),
    "gpt2": (tiny_gpt2, tiny_inputs("gpt2", 8)),
    "opt": (BUILD["opt"], tiny_inputs("opt", 8)),
    "encoder": (encoder, TOKENS),
}


def run(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return found if isinstance(found, Tensor) else found[0]


def moment(x: Tensor) -> Tensor:
    rows = torch.cat([x.flatten(0, -2), torch.ones(x[..., :1].numel(), 1)], 1).double()
    return rows.T @ rows


class Attention:
    """An attention of a network, with what it reads and gives on some inputs."""

    def __init__(self, model: nn.Module, inputs: Any, number: int = 1) -> None:
        groups = find_groups(model, inputs, ("head", "head_dim"))
        apply_edits(model, groups.edits)
        self.model, self.inputs = model, inputs
        self.heads = [one for one in groups if one.kind == "head"][number]
        self.group: Group = [one for one in groups if one.kind == "head_dim"][number]
        self.layout = HeadLayout.of(self.group)
        self.projection = parent_path(self.layout.output.tensor)
        modules = {"makes": get_module(model, parent_path(self.layout.weights[0].tensor))}
        with recording({**modules, "reads": get_module(model, self.projection)}) as seen:
            run(model, inputs)
        self.x, self.read = seen["makes.in"], seen["reads.in"]

    def smaller(self, size: int, heads: Sequence[int] = ALL) -> SmallerHeads:
        return smaller_heads(self.group, self.model, size, heads, moment(self.x), moment(self.read))

    def with_rank(self, rank: int) -> Attention:
        """Leave every head queries, keys and values of a rank, drawn at random."""
        generator = torch.Generator().manual_seed(5)
        size = self.layout.size
        for made in self.layout.made():
            low = torch.linalg.qr(torch.randn(self.layout.heads, size, rank, generator=generator))[0]
            for part in filter(None, made):
                own = self.model.get_parameter(part.tensor)
                entries = torch.einsum("hde,he...->hd...", low @ low.mT, entries_of(own, part, size))
                own.data = with_entries(own, part, entries)
        return Attention(self.model, self.inputs)

    def pruned(self, size: int, heads: Sequence[int] = ALL) -> tuple[list[Edit], dict[str, Tensor]]:
        """Edits for smaller heads, the projection refitted by the moments that follow, and their tensors."""
        found = self.smaller(size, heads)
        before = moment(self.read)
        after = found.reduction @ before @ found.reduction.T
        layer: Any = get_module(self.model, self.projection)
        transposed = self.layout.output.dim == 0
        weight = (layer.weight.T if transposed else layer.weight).detach().double()
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        whole = torch.cat([weight, bias[:, None]], 1) @ before @ found.reduction.T @ torch.linalg.pinv(after)
        values = {**found.values, f"{self.projection}.weight": whole[:, :-1].T if transposed else whole[:, :-1]}
        values |= {} if layer.bias is None else {f"{self.projection}.bias": whole[:, -1]}
        gone = {
            self.heads.name: [h for h in ALL if h not in heads],
            self.group.name: list(range(size, self.group.size)),
        }
        edits: list[Edit] = [*narrow_edits([self.heads, self.group], {k: torch.tensor(v) for k, v in gone.items()})]
        keys, tensors = defaultdict[str, list[str]](list), dict[str, Tensor]()
        for path, value in values.items():
            key = f"e0.{path}"
            keys[parent_path(path)].append(key)
            tensors[key] = value
        return [*edits, *(Refit(unit=unit, tensors=tuple(own)) for unit, own in keys.items())], tensors


def assert_same_output(attention: Attention, size: int, heads: Sequence[int] = ALL) -> None:
    dense = run(attention.model, attention.inputs)
    apply_edits(attention.model, *attention.pruned(size, heads))
    assert get_module(attention.model, attention.projection).get_parameter("weight").numel() == len(heads) * size * 32
    torch.testing.assert_close(run(attention.model, attention.inputs), dense, rtol=2e-3, atol=2e-3 * float(dense.std()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "bert", "encoder"])
def test_at_the_full_size_the_output_is_the_same(name: str) -> None:
    build, inputs = NETWORKS[name]
    attention = Attention(build(), inputs)
    before = attention.model.state_dict()
    found = attention.smaller(8)
    assert all(before[path].shape == value.shape for path, value in found.values.items())
    assert_same_output(attention, 8)


@pytest.mark.parametrize("name", NETWORKS)
def test_heads_that_need_no_more_dimensions_lose_nothing(name: str) -> None:
    build, inputs = NETWORKS[name]
    assert_same_output(Attention(build(), inputs).with_rank(3), 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm", "bert", "encoder"])
def test_heads_that_go_besides_take_nothing_with_them_where_nobody_reads_them(name: str) -> None:
    build, inputs = NETWORKS[name]
    attention = Attention(build(), inputs).with_rank(4)
    part = attention.layout.output
    weight = attention.model.get_parameter(part.tensor)
    weight.data = with_entries(weight, part, torch.zeros(2, 8, 32), (1, 2))
    assert_same_output(Attention(attention.model, inputs), 4, (0, 3))


def logits(attention: Attention, values: dict[str, Tensor], size: int, scale: float) -> Tensor:
    """Logits of all pairs of tokens, `(heads, N, N)`, less the mean of each query's."""
    x = attention.x.flatten(0, -2).double()
    made = []
    for number, (weight, bias) in enumerate(attention.layout.made()):
        rows = values[weight.tensor].double()
        begin = number * 4 * size if weight.tensor.endswith("qkv.weight") else 0
        own = rows[begin : begin + 4 * size].unflatten(0, (4, size))
        made.append(torch.einsum("hde,ne->hnd", own, x))
        if bias is not None:
            made[-1] += values[bias.tensor].double()[begin : begin + 4 * size].unflatten(0, (4, 1, size))
    found = made[0] @ made[1].mT * scale
    return found - found.mean(-1, keepdim=True)


@pytest.mark.parametrize("name", ["timm", "timm without bias", "hf_vit"])
def test_no_other_logits_of_that_rank_are_nearer(name: str) -> None:
    """Eckart and Young: what is lost is what the singular values behind say."""
    build, inputs = NETWORKS[name]
    attention, size = Attention(build(), inputs), 5
    dense = logits(attention, attention.model.state_dict(), 8, 8**-0.5)
    found = logits(attention, attention.smaller(size).values, size, size**-0.5)
    lost = torch.linalg.svdvals(dense)[:, size:].square().sum(-1)
    torch.testing.assert_close(
        (dense - found).square().sum((1, 2)), lost, rtol=1e-3, atol=1e-6 * float(dense.square().sum())
    )


def test_no_other_dimensions_of_values_leave_more_to_read() -> None:
    """What is lost of the projection's output, once it is refitted, is what the singular values behind say."""
    attention, size = Attention(tiny_timm(), tiny_images(8)), 5
    found = attention.smaller(size).reduction[:size, :8]
    x = attention.read.flatten(0, -2)[:, :8].double()
    x = x - x.mean(0)
    read = x @ attention.model.get_parameter(f"{attention.projection}.weight")[:, :8].T.double()
    fitted = (x @ found.T) @ torch.linalg.lstsq(x @ found.T, read).solution
    lost = torch.linalg.svdvals(read)[size:].square().sum()
    torch.testing.assert_close((read - fitted).square().sum(), lost.detach(), rtol=1e-3, atol=1e-6)
    first = x[:, :size] @ torch.linalg.lstsq(x[:, :size], read).solution
    assert (read - first).square().sum() > 1.5 * lost


@pytest.mark.parametrize("name", ["timm", "bert", "encoder"])
def test_it_is_better_than_the_first_or_the_largest_dimensions(name: str) -> None:
    build, inputs = NETWORKS[name]
    dense = run(build(), inputs)
    attention, plain = Attention(build(), inputs), build()
    apply_edits(attention.model, *attention.pruned(5))
    groups = find_groups(plain, inputs, "head_dim")
    apply_edits(plain, [*groups.edits, *narrow_edits(groups, {attention.group.name: torch.arange(5, 8)})])
    found, first = ((run(model, inputs) - dense).square().mean() for model in (attention.model, plain))
    assert found < 0.5 * first


def test_values_keep_the_norm_of_dense_rows() -> None:
    attention = Attention(tiny_timm(), tiny_images(8))
    found = attention.smaller(5).values["blocks.1.attn.qkv.weight"][2 * 4 * 5 :].unflatten(0, (4, 5))
    dense = attention.model.get_parameter("blocks.1.attn.qkv.weight")[64:].unflatten(0, (4, 8))
    wanted = dense.square().sum(-1).mean(-1).sqrt()
    torch.testing.assert_close(found.norm(dim=-1), wanted[:, None].expand(-1, 5).detach(), rtol=1e-4, atol=0)


def test_a_multiple_of_moments_is_the_same_and_half_precision_stays_out() -> None:
    attention = Attention(tiny_timm(), tiny_images(8))
    moments = moment(attention.x), moment(attention.read)
    one, other = (smaller_heads(attention.group, attention.model, 4, ALL, *(m * by for m in moments)) for by in (1, 7))
    assert all(torch.allclose(value, other.values[path], atol=1e-5) for path, value in one.values.items())
    half = smaller_heads(attention.group, attention.model.bfloat16(), 4, ALL, *moments)
    assert {value.dtype for value in half.values.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("size", "heads", "match"),
    [
        (9, ALL, "Expected 1 to 8 dimensions of heads that stay, as ascending numbers from 0 to 3, but got 9 of"),
        (0, ALL, "but got 0 of"),
        (4, (), r"but got 4 of \[\]"),
        (4, (2, 1), r"but got 4 of \[2, 1\]"),
        (4, (1, 4), r"but got 4 of \[1, 4\]"),
    ],
)
def test_other_sizes_are_refused(size: int, heads: Sequence[int], match: str) -> None:
    attention = Attention(tiny_timm(), tiny_images(8))
    with pytest.raises(ValueError, match=match):
        attention.smaller(size, heads)


def test_moments_of_another_shape_are_refused() -> None:
    attention = Attention(tiny_timm(), tiny_images(8))
    x, read = moment(attention.x), moment(attention.read)
    for moments, what in (((x[:-1, :-1], read), "the attention reads"), ((x, read[1:, 1:]), "the output projection")):
        with pytest.raises(ValueError, match=rf"what {what}.*, of shape \(33, 33\), but got \(32, 32\)"):
            smaller_heads(attention.group, attention.model, 4, ALL, *moments)
