"""REAM (arXiv 2604.04356), a rival: removed experts are merged into kept experts, after the paper's description.

The experts with the highest REAP scores stay, equally many in each layer. In descending order of score, each takes in
the most similar removed experts: by the cosine of the outputs times gate probabilities, and of the router's logits,
over tokens. Neurons are matched by the Hungarian algorithm on activations and weights; weights are averaged by score.
Layers are merged in order, on the inputs behind earlier merges. The router keeps the rows of the kept experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Plan
from prunerecover.model.hooks import removed_after

GROUP = 4  # most experts in a group, so that a quarter of the experts takes in all others


@torch.no_grad()
def merge_experts(network: nn.Module, dense: nn.Module, plan: Plan, scores: Mapping[str, Tensor], ids: Tensor) -> None:
    """Merge the experts removed by a plan into the kept experts, in place.

    Args:
        network: Qwen3-MoE after the plan.
        dense: Network before.
        plan: Plan that removes experts.
        scores: REAP's scores of the dense network.
        ids: Tokens to compare experts on, `(N, T)`.
    """
    for edit in plan.edits:
        assert edit.op == "narrow"
        old: Any = dense.get_submodule(edit.unit)
        router: Any = dense.get_submodule(edit.unit.replace("experts", "gate"))
        new: Any = network.get_submodule(edit.unit)
        tokens, score = _inputs(network, new, ids), scores[edit.unit].tolist()
        logits = F.linear(tokens, router.weight)
        gate, up = torch.einsum("tc,ehc->eth", tokens, old.gate_up_proj).chunk(2, dim=-1)
        hidden = old.act_fn(gate) * up
        outputs = torch.einsum("eth,ech->etc", hidden, old.down_proj) * logits.softmax(-1).T[..., None]
        rows = outputs.flatten(1)
        alike = (_cosines(rows, rows) + _cosines(logits.T, logits.T)) / 2
        neurons = torch.cat([*old.gate_up_proj.chunk(2, dim=1), old.down_proj.mT], -1)
        left = set(edit.gone)
        for centre in sorted(edit.keep, key=lambda expert: -score[expert]):
            near = sorted(left, key=lambda expert: -float(alike[centre, expert]))[: GROUP - 1]
            left -= set(near)
            total = score[centre] * neurons[centre]
            for expert in near:
                match = _cosines(hidden[centre].T, hidden[expert].T) + _cosines(neurons[centre], neurons[expert])
                order = linear_sum_assignment(match.numpy(), maximize=True)[1]
                total += score[expert] * neurons[expert, order]
            merged = total / sum(score[expert] for expert in (centre, *near))
            place, width = edit.keep.index(centre), tokens.shape[1]
            new.gate_up_proj[place] = torch.cat(merged.split(width, dim=1)[:2])
            new.down_proj[place] = merged[:, 2 * width :].T


def _inputs(network: nn.Module, experts: nn.Module, ids: Tensor) -> Tensor:
    """Return the tokens that reach a layer of experts, `(N T, C)`."""
    seen: list[Tensor] = []
    with removed_after(experts.register_forward_pre_hook(lambda _, args: seen.append(args[0]))):
        network(input_ids=ids, use_cache=False)
    return seen[0]


def _cosines(first: Tensor, second: Tensor) -> Tensor:
    return F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
