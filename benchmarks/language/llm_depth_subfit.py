"""SubFit (arXiv 2606.02559): attentions and MLPs out of a language model, with a fitted bypass in the place of each.

Written from the descriptions of the method, for models with the parts of Llama; benchmarks only. The authors have not
published their code: the score's form, the ridge and the ranks are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.data.real import autocast
from benchmarks.language.llm_depth_rivals import cosine_distance, without
from prunerecover.model.hooks import removed_after

PARTS = {"attention": ("input_layernorm", "self_attn"), "mlp": ("post_attention_layernorm", "mlp")}
RIDGE = 1e-1  # added variance of inputs over the mean variance, by other texts the best of 0.001, 0.01 and 0.1
WIDER = 4  # rank of the MLPs' bypasses over that of attentions


class InPlaceOfAttention(nn.Sequential):
    """Map with the signature of an attention."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the output of the map, and no weights of attention."""
        return super().forward(hidden_states), None  # type: ignore[no-untyped-call]


@torch.no_grad()
def branch_states(network: Any, ids: Tensor) -> dict[tuple[str, int], list[Tensor]]:
    """Return the effect on the stream, and the normed input and output `(N T, C)`, of each attention and MLP."""
    seen: dict[tuple[str, int], list[Tensor]] = {}

    def keep(own: list[Tensor], out: Tensor) -> None:
        turned, longer = cosine_distance(own[0], own[0] + out), out.norm(dim=-1) / own[0].norm(dim=-1)
        own[:] = turned.mean() * longer.mean(), own[1].flatten(0, 1), out.flatten(0, 1)

    handles = []
    for number, layer in enumerate(network.model.layers):
        for kind, (norm, branch) in PARTS.items():
            own = seen[kind, number] = []
            handles += [
                getattr(layer, norm).register_forward_hook(lambda _, args, out, own=own: own.extend((args[0], out))),
                getattr(layer, branch).register_forward_hook(
                    lambda _, __, out, own=own: keep(own, out[0] if isinstance(out, tuple) else out)
                ),
            ]
    with removed_after(*handles), autocast():
        network.model(input_ids=ids)
    return seen


def sub_fit(network: Any, ids: Tensor, count: int) -> tuple[dict[str, list[int]], Any]:
    """Return removed attentions and MLPs, and the network with bypasses in their places (SubFit, arXiv 2606.02559).

    Attentions and MLPs of least effect go: mean turn of the stream times mean length over the stream's. As many
    attentions as `count` go, and one MLP more, as the bypasses hold up to an MLP's parameters. Each bypass is a map of
    low rank from the normed input to the dense output; those of the MLPs have a wider basis of their inputs in common.
    """
    states, pruned = branch_states(network, ids), without(network, ())
    chosen: dict[str, list[int]] = {}
    for kind, number in (("attention", count), ("mlp", count + 1)):
        effect = {i: float(found) for (name, i), (found, _, _) in states.items() if name == kind}
        chosen[kind] = sorted(sorted(effect, key=effect.__getitem__)[:number])
    width, held = network.config.hidden_size, sum(p.numel() for p in pruned.model.layers[0].mlp.parameters())
    rank = min(width // WIDER, held // (2 * width * count + WIDER * width * (count + 2)))
    for number in chosen["attention"]:
        [own] = bypasses([states["attention", number]], rank)
        pruned.model.layers[number].self_attn = InPlaceOfAttention(*own)
    wider = bypasses([states["mlp", number] for number in chosen["mlp"]], WIDER * rank)
    for number, own in zip(chosen["mlp"], wider, strict=True):
        pruned.model.layers[number].mlp = own
    return chosen, pruned


@torch.no_grad()
def bypasses(branches: Sequence[Sequence[Tensor]], rank: int) -> list[nn.Sequential]:
    """Return a map from input to output for each branch, of one basis of the inputs in common, by ridge regression.

    Args:
        branches: Effect, input and output `(N, C)` of each branch.
        rank: Number of directions in the basis.
    """
    means = [(x.float().mean(0), y.float().mean(0)) for _, x, y in branches]
    centred = [(x - m).double() for (_, x, _), (m, _) in zip(branches, means, strict=True)]
    grams = [x.T @ x for x in centred]
    grams = [gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device) for gram in grams]
    crossed = [x.T @ y.double() for x, (_, _, y) in zip(centred, branches, strict=True)]
    solved = torch.cat([torch.linalg.solve(gram, cross) for gram, cross in zip(grams, crossed, strict=True)], 1)
    values, vectors = torch.linalg.eigh(sum(grams))
    root = vectors * values.sqrt()
    basis = vectors / values.sqrt() @ torch.linalg.svd(root.T @ solved, full_matrices=False).U[:, :rank]
    first = _linear(basis.float())
    found = []
    for gram, cross, (mean, wanted) in zip(grams, crossed, means, strict=True):
        second = torch.linalg.solve(basis.T @ gram @ basis, basis.T @ cross).float()
        found.append(nn.Sequential(first, _linear(second, wanted - mean @ basis.float() @ second)))
    return found


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    found = nn.Linear(weight.shape[0], weight.shape[1], bias is not None, weight.device)
    found.weight.data = weight.T.contiguous()
    if bias is not None:
        found.bias.data = bias
    return found
