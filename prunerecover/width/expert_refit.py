"""Routed experts that stay take over the work of removed experts, by least squares.

A layer of experts puts out the sum of w D h over the experts of a token: w is the routing weight, h the hidden
activation, and D the last matrix, in which the sum is linear. In order of depth, the last matrices of the kept experts
are fitted to the gap between the layer's output in the dense and in the narrowed network: D becomes D plus the argmin
over E of |gap - w E h|^2 + ridge |E|^2, an expert at a time on the tokens routed there, in a few sweeps over the
experts (Gauss-Seidel). Routers and first matrices stay. Memory grows with the tokens and with the squared width of an
expert, not with the number of experts.

Fitted are fused experts of two matrices `gate_up_proj` and `down_proj`, gated and without biases, as in Mixtral, Qwen3
and DeepSeek-V3; layers with another formula stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.calibration.moments import RIDGE, VANISHING, solve_ridge
from prunerecover.display.progress import progress
from prunerecover.importance.measuring.routed import Routed, read_call
from prunerecover.model.batches import ModelInputs, is_padding
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Narrow, Refit
from prunerecover.plan.plan import Plan
from prunerecover.recovery.reconstruction_order import reference_of
from prunerecover.session.session import Session

LAST = "down_proj"
MATRICES = {"gate_up_proj", LAST}
SWEEPS = 3
CLOSE = 0.03  # difference of a layer's output from the formula, relative to its norm; half precision rounds


@dataclass(frozen=True)
class _Tokens:
    """Tokens at a layer of experts.

    Attributes:
        tokens: Inputs `(T, C)`.
        index: Chosen experts `(T, k)`.
        weights: Routing weights `(T, k)`.
        gap: Dense output less the present output `(T, C)`, in single precision; updated in place.
    """

    tokens: Tensor
    index: Tensor
    weights: Tensor
    gap: Tensor

    def of(self, experts: Any, expert: int) -> tuple[Tensor, Tensor]:
        """Return the tokens routed to an expert, as indices `(n,)`, and their weighted activations `(n, H)`."""
        at, place = (self.index == expert).nonzero(as_tuple=True)
        gate, up = F.linear(self.tokens[at], experts.gate_up_proj[expert]).chunk(2, dim=-1)
        return at, (experts.act_fn(gate) * up * self.weights[at, place, None]).float()


def narrowed_experts(edits: Sequence[Edit]) -> list[str]:
    """Return the paths of the fused experts with fewer experts after edits."""
    return list(dict.fromkeys(edit.unit for edit in edits if isinstance(edit, Narrow) and edit.kind == "expert"))


def expert_refits(
    session: Session, edits: Sequence[Edit], tensors: Mapping[str, Tensor]
) -> tuple[list[Refit], dict[str, Tensor]]:
    """Return edits that refit the layers with fewer experts, to follow the given edits, and their tensors.

    Args:
        session: Network before the edits, and samples.
        edits: Edits in order.
        tensors: Tensors of the edits.
    """
    found = refitted_experts(session, edits, tensors, narrowed_experts(edits))
    keys = {path: f"e{number}.{LAST}" for number, path in enumerate(found, len(edits))}
    refits = [Refit(unit=path, tensors=(key,)) for path, key in keys.items()]
    return refits, {keys[path]: value for path, value in found.items()}


@torch.no_grad()
def refitted_experts(
    session: Session, edits: Sequence[Edit], tensors: Mapping[str, Tensor], paths: Sequence[str]
) -> dict[str, Tensor]:
    """Return the new last matrices `(experts, C, H)` of layers, by path; layers of another formula are left out.

    Args:
        session: Network before the edits, and samples.
        edits: Edits before the fit.
        tensors: Tensors of the edits.
        paths: Paths of fused experts with fewer experts, in order of depth.
    """
    found = dict[str, Tensor]()
    if not paths:
        return found
    samples, network = session.samples.whole, session.output.pruned(edits, tensors)
    dense = reference_of(session.model, Plan(edits=tuple(edits)))
    with uncompiled(), evaluating(network, dense), progress("refitting experts", len(paths)) as advance:
        now, then = FrontToBack(network, samples), FrontToBack(dense, samples)
        for path in paths:
            experts: Any = get_module(network, path)
            batches = [_seen(now, then, path, inputs) for inputs in samples] if _has_matrices(experts) else []
            seen = [batch for batch in batches if batch is not None]
            if seen and len(seen) == len(batches):
                _refit(experts, _Tokens(*map(torch.cat, zip(*seen, strict=True))))
                found[path] = experts.down_proj.detach().float().cpu()
            advance()
    return found


def _has_matrices(experts: Any) -> bool:
    return set(experts._parameters) == MATRICES and callable(getattr(experts, "act_fn", None))


def _seen(now: FrontToBack, then: FrontToBack, path: str, inputs: ModelInputs) -> tuple[Tensor, ...] | None:
    """Return the tokens of a batch without padding, as in `_Tokens`; None for another call or another formula."""
    experts: Any = get_module(now.network, path)
    calls = list[Routed]()

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(read_call(path, experts, args, kwargs, len(experts.down_proj), inputs.n_samples))

    with removed_after(experts.register_forward_pre_hook(see, with_kwargs=True)):
        here = now.seen_at(path, inputs)
    there = then.seen_at(path, inputs)
    if len(here) != 1 or len(there) != 1:
        return None
    (routed,), ((tokens, output),), ((_, target),) = calls, here, there
    index, weights = routed.call.arguments[routed.index], routed.chosen_weights
    if not _follows(experts, _Tokens(tokens, index, weights, output.float())):
        return None
    kept = ~is_padding(inputs, routed.padding)
    return tokens[kept], index[kept], weights[kept], (target.float() - output.float())[kept]


def _follows(experts: Any, tokens: _Tokens) -> bool:
    """Whether a layer's output, in the place of the gap, is the sum of the experts' outputs by the formula."""
    left = tokens.gap.clone()
    try:
        for expert, last in enumerate(experts.down_proj.float()):
            at, hidden = tokens.of(experts, expert)
            left[at] -= F.linear(hidden, last)
    except RuntimeError:  # matrices of other shapes
        return False
    return bool(left.norm() <= CLOSE * tokens.gap.norm())


def _refit(experts: Any, tokens: _Tokens) -> None:
    """Fit the last matrices to the gaps, in place; the gaps are updated."""
    for expert in [*range(len(experts.down_proj))] * SWEEPS:
        at, hidden = tokens.of(experts, expert)
        if len(at):
            among, cross = (hidden.T @ hidden).double(), (tokens.gap[at].T @ hidden).double()
            strength = RIDGE[0] + RIDGE[1] * len(among) / len(at)
            penalty = (strength * among.diagonal().mean()).clamp(min=VANISHING)
            more = solve_ridge(among, cross, penalty).to(experts.down_proj)
            experts.down_proj[expert] += more
            tokens.gap[at] -= F.linear(hidden, more.float())
