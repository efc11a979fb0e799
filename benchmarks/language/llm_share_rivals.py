"""Published rules for the widths and attentions of a language model, without refits: Minitron and 2SSP.

Written from the formulas of both papers, for models with the parts of Llama; benchmarks only. Minitron (arXiv
2407.14679) scores neurons, heads and channels of the embedding by their activations, uniformly over the layers, and
searches shapes of one size. Three shapes are tried here, without distillation; heads with a common key and value go
together. 2SSP (arXiv 2501.17771) removes neurons first and attentions second. Its authors judge attentions on a sample
of 2,048 tokens, and count shares of the parameters of the blocks; here 1,024 tokens and all parameters count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.data.real import autocast
from benchmarks.language.llm_depth import removed
from benchmarks.language.llm_depth_rivals import BLOCKS, ROWS
from benchmarks.language.llm_depth_scores import window_losses
from benchmarks.runner.plans import pruned, share_of_parameters
from prunerecover import Budget, Plan, plan_width
from prunerecover.importance.context import WidthContext
from prunerecover.model.hooks import removed_after
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits

READERS = ("q_proj", "o_proj", "gate_proj", "down_proj")  # linears behind each norm, heads and neurons
SHAPES = (("neuron",), ("head", "neuron"), ("hidden", "neuron"))  # kinds of narrowed groups
OVER = 0.002  # of the parameters, at most, beyond the budget
BALANCE = 1.5  # alpha of 2SSP
Values = Mapping[str, Tensor]  # `(C,)` by path of a linear: the size of each input
Found = tuple[dict[str, Any], Any]  # removed units by kind, and the network


@torch.no_grad()
def norms(network: Any, ids: Tensor, order: int) -> dict[str, Tensor]:
    """Return the norm over each text's tokens of the inputs of linears, `(N, C)` by path.

    Args:
        network: Dense.
        ids: Calibration tokens, `(N, T)`.
        order: Order of the norm.
    """
    seen: dict[str, list[Tensor]] = {path: [] for path, _ in network.named_modules() if path.endswith(READERS)}
    handles = [
        network.get_submodule(path).register_forward_pre_hook(
            lambda _, args, own=own: own.append(args[0].float().norm(order, dim=1))
        )
        for path, own in seen.items()
    ]
    with removed_after(*handles), autocast():
        for some in torch.split(ids, ROWS):
            network.model(input_ids=some)
    return {path: torch.cat(own) for path, own in seen.items()}


def importance(values: Values) -> Callable[[WidthContext], dict[str, Tensor]]:
    """Return the importance of units by the sizes of their activations, a sum over all their readers."""

    def scores(context: WidthContext) -> dict[str, Tensor]:
        found = {}
        for group in context.groups:
            readers = {part.tensor.removesuffix(".weight"): part for part in group.slices if not part.makes}
            each = [
                values[path][part.indices(torch.arange(group.size))].view(group.size, -1).norm(dim=1)
                for path, part in readers.items()
                if path in values
            ]
            found[group.name] = torch.stack(each).sum(0).cpu()
        return found

    return scores


def narrowed(network: Any, ids: Tensor, share: float, values: Values, kinds: Sequence[str]) -> Plan:
    """Return the plan without a share of the parameters: of units of some kinds, the same share in every layer."""
    how: dict[str, Any] = {"allocation": "uniform", "replace": "zero", "kinds": kinds}
    batches = [{"input_ids": some} for some in torch.split(ids, 4)]
    return plan_width(network, Budget(params=share), batches=batches, importance=importance(values), **how)


def minitron(network: Any, ids: Tensor, share: float) -> Found:
    """Return the shape of least loss on the held-out calibration texts (Minitron, arXiv 2407.14679, sec. 2.2).

    Activations are aggregated by their mean size over tokens and by the L2 norm over texts. Shapes that miss the size,
    as an equal share of a few heads does, are left out.
    """
    values = {path: found.norm(dim=0) for path, found in norms(network, ids, 1).items()}
    plans = [narrowed(network, ids, share, values, kinds) for kinds in SHAPES]
    shapes = [(removed(plan), pruned(network, plan)) for plan in plans]
    fitting = [shape for shape in shapes if share_of_parameters(network, shape[1]) >= 1 - share - OVER]
    return min(fitting, key=lambda shape: loss_of(shape[1], ids))


def two_stages(network: Any, ids: Tensor, share: float) -> Found:
    """Return the network without neurons, then without attentions (2SSP, arXiv 2501.17771, eq. 5).

    Neurons go by the L2 norm over tokens, a mean over texts; attentions one by one, by the loss on the held-out texts.
    """
    number = attentions_to_remove(network, share)
    values = {path: found.mean(dim=0) for path, found in norms(network, ids, 2).items()}
    attention = share_of_parameters(network, network.model.layers[0].self_attn)
    plan = narrowed(network, ids, share - number * attention, values, ("neuron",))
    narrow = pruned(network, plan, merged=False)
    gone = least_attentions(narrow, ids, number)
    apply_edits(narrow, [Remove(unit=f"{BLOCKS}.{block}.self_attn", kind="attention") for block in gone])
    return {**removed(plan), "attention": sorted(gone)}, narrow


def attentions_to_remove(network: Any, share: float) -> int:
    """Return 2SSP's number of attentions for a share of all parameters (eq. 5)."""
    layers = network.model.layers
    of_blocks = share / share_of_parameters(network, layers)
    power = share_of_parameters(layers[0].self_attn, layers[0].mlp) / BALANCE
    return round(len(layers) * math.pow(of_blocks, power))


def least_attentions(network: Any, ids: Tensor, count: int) -> list[int]:
    """Return the blocks whose attentions go, in order of least loss.

    Attentions whose loss in the last step exceeds the best in the present step are not judged again.
    """
    losses, gone = dict.fromkeys(range(len(network.model.layers)), 0.0), list[int]()
    while len(gone) < count:
        best = math.inf
        for block in sorted(losses, key=losses.__getitem__):
            if losses[block] >= best:
                break
            losses[block] = loss_without(network, ids, [*gone, block])
            best = min(best, losses[block])
        gone.append(min(losses, key=losses.__getitem__))
        del losses[gone[-1]]
    return gone


def loss_without(network: Any, ids: Tensor, blocks: Sequence[int]) -> float:
    """Return the loss on the held-out texts without the attentions of some blocks."""
    attentions = [network.model.layers[block].self_attn for block in blocks]
    handles = [own.register_forward_hook(lambda _, __, out: (torch.zeros_like(out[0]), *out[1:])) for own in attentions]
    with removed_after(*handles):
        return loss_of(network, ids)


def loss_of(network: Any, ids: Tensor) -> float:
    """Return the loss on the calibration texts held out by prunerecover."""
    return float(window_losses(network, ids[3::4]).mean())
