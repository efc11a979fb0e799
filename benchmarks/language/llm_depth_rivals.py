"""Published methods of removing blocks from a language model without training: the blocks, and their replacements.

Written from the papers' formulas, for models with the parts of Llama; benchmarks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.real import autocast
from prunerecover.model.batches import ModelInputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.copies import deep_copy
from prunerecover.model.hooks import removed_after
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals

BLOCKS = "model.layers"
ROWS, TOKENS = 8, 1024  # texts, or tokens of a fit, at a time
EPOCHS, RATE = 40, 1e-3  # epochs and rate of the fit by cosine distance
TOP, PASSES, SLOW = 100, 10, 1e-4  # logits of a token, passes over the texts, and rate of a tuned patch
Distance = Callable[[Tensor, Tensor], Tensor]


def without(network: nn.Module, blocks: Sequence[int]) -> Any:
    """Return a copy without some blocks."""
    copied = deep_copy(network).eval()
    apply_edits(copied, block_removals(copied, blocks))
    return copied


@torch.no_grad()
def hidden_states(network: Any, ids: Tensor) -> list[Tensor]:
    """Return the states before each block, and before the final norm, `(N, T, C)` each."""
    seen: list[list[Tensor]] = [[] for _ in range(len(network.model.layers) + 1)]
    handles = [
        layer.register_forward_pre_hook(lambda _, args, own=own: own.append(args[0]))
        for layer, own in zip(network.model.layers, seen, strict=False)
    ]
    handles.append(network.model.norm.register_forward_pre_hook(lambda _, args: seen[-1].append(args[0])))
    with removed_after(*handles), autocast():
        for some in ids.split(ROWS):
            network.model(input_ids=some)
    return [torch.cat(own).float() for own in seen]


dense_states = cache(hidden_states)


def cosine_distance(before: Tensor, after: Tensor) -> Tensor:
    """Return 1 - cos of each token."""
    return 1 - F.cosine_similarity(before, after, dim=-1)


def angle_at_the_end(before: Tensor, after: Tensor) -> Tensor:
    """Return the angle at the last token of each text, in units of pi."""
    return F.cosine_similarity(before[:, -1], after[:, -1], dim=-1).clamp(-1, 1).arccos() / math.pi


def best_run(network: nn.Module, ids: Tensor, count: int, distance: Distance, first: int = 0) -> list[int]:
    """Return the contiguous run with the nearest states at both ends (Gromov et al., arXiv 2403.17887, sec. 3).

    Args:
        network: Dense.
        ids: Calibration tokens, `(N, T)`.
        count: Number of blocks.
        distance: Distance of the hidden states `(N, T, C)` before and after.
        first: First possible block of a run.
    """
    states = dense_states(network, ids)
    starts = range(first, len(states) - count)
    best = min(starts, key=lambda start: float(distance(states[start], states[start + count]).mean()))
    return list(range(best, best + count))


@torch.inference_mode()
def sleb_order(network: nn.Module, ids: Tensor, count: int) -> list[int]:
    """Return blocks in the order of least loss of perplexity (SLEB, Song et al., arXiv 2402.09025, alg. 1).

    Blocks whose loss in the last step exceeds the best in this step are not judged again: a loss hardly ever falls.
    """
    runner, inputs = BlockRunner(network, BLOCKS), ModelInputs(kwargs={"input_ids": ids})
    losses = dict.fromkeys(range(len(runner.blocks)), 0.0)
    gone: list[int] = []
    while len(gone) < count:
        best = math.inf
        with runner.skipping(gone), autocast():
            states = hidden_states(network, ids)
            for block in sorted(losses, key=lambda block: losses[block]):
                if losses[block] >= best:
                    break
                logits = runner.finish(inputs, block + 1, states[block])[:, :-1].float()
                losses[block] = float(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]))
                best = min(best, losses[block])
        gone.append(min(losses, key=lambda block: losses[block]))
        del losses[gone[-1]]
    return gone


def replace_me(network: Any, ids: Tensor, count: int, *, cosine: bool) -> tuple[list[int], Any]:
    """Return the best run, and the network with a linear map in its place (ReplaceMe, arXiv 2505.02819, sec. 3).

    With M the output of the MLP before the run, Y the stream before that MLP's addition and L the stream after the run,
    T = argmin |M T + Y - L|^2 in closed form (eq. 5), or by the cosine distance of M T + Y and L, with Adam (eq. 7).
    """
    run = best_run(network, ids, count, cosine_distance, first=1)
    before, added, states = run[0] - 1, list[Tensor](), dense_states(network, ids)
    handle = network.model.layers[before].mlp.register_forward_hook(lambda _, __, out: added.append(out.float()))
    with removed_after(handle), torch.no_grad(), autocast():
        BlockRunner(network, BLOCKS).advance(ModelInputs(kwargs={"input_ids": ids}), before, states[before], run[0])
    mlp = torch.cat(added).flatten(0, 1)
    stream, wanted = states[run[0]].flatten(0, 1) - mlp, states[run[-1] + 1].flatten(0, 1)
    solved = torch.linalg.lstsq(mlp.double(), (wanted - stream).double()).solution.float()
    found = _by_cosine(mlp, stream, wanted) if cosine else solved
    pruned = deep_copy(network).eval()
    weight = pruned.model.layers[before].mlp.down_proj.weight
    weight.data = found.T @ weight.data
    return run, without(pruned, run)


@torch.enable_grad()
def _by_cosine(mlp: Tensor, stream: Tensor, wanted: Tensor) -> Tensor:
    found = torch.eye(mlp.shape[1], device=mlp.device).requires_grad_()
    optimizer = torch.optim.Adam([found], lr=RATE)
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(mlp), generator=generator).split(TOKENS):
            optimizer.zero_grad()
            cosine_distance(mlp[some] @ found + stream[some], wanted[some]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return found.detach()


def hadamard(size: int) -> Tensor:
    """Return an orthogonal Hadamard matrix, the Kronecker product of matrices of order 12 (Paley's) and 2."""
    squares = {i * i % 11 for i in range(11)}
    paley = torch.ones(12, 12)
    paley[1:, 0] = -1
    paley[1:, 1:] = torch.tensor([[1.0 if (i - j) % 11 in squares else -1.0 for j in range(11)] for i in range(11)])
    found = torch.ones(1, 1)
    while len(found) < size:
        found = torch.kron(found, paley if size // len(found) % 3 == 0 else torch.tensor([[1.0, 1], [1, -1]]))
    if len(found) != size:
        raise ValueError(f"No Hadamard matrix of order {size} is a product of orders 12 and 2.")
    return found / math.sqrt(size)


def linear_patch(network: Any, ids: Tensor, count: int) -> tuple[list[int], Any]:
    """Return the best run, and the network with a symmetric map at the cut (LinearPatch, arXiv 2505.24680, sec. 3).

    The map is H diag(d) H^T. H is a Hadamard matrix; d is the ratio of the mean magnitudes of the rotated channels
    after and before the run, a mean over the texts. `patch` is the difference from the identity, exact enough in bf16.
    """
    run, states = best_run(network, ids, count, cosine_distance, first=1), dense_states(network, ids)
    rotation = hadamard(states[0].shape[-1]).to(ids.device)
    before, after = ((states[i] @ rotation).abs().mean(1) for i in (run[0], run[-1] + 1))
    pruned = without(network, run)
    pruned.model.layers[run[0] - 1].patch = patch = nn.Linear(len(rotation), len(rotation), False, ids.device)
    patch.weight.data = rotation @ (after / before - 1).mean(0).diag() @ rotation.T
    pruned.model.layers[run[0] - 1].register_forward_hook(lambda layer, _, out: out + layer.patch(out))
    return run, pruned


@torch.enable_grad()
def tuned_patch(network: Any, ids: Tensor, count: int) -> tuple[list[int], Any]:
    """Return `linear_patch` with the map tuned on the dense network's largest logits (arXiv 2505.24680, sec. 3)."""
    run, pruned = linear_patch(network, ids, count)
    with torch.no_grad(), autocast():
        kept = [network(input_ids=some, use_cache=False).logits.float().topk(TOP) for some in ids.split(1)]
    weight = pruned.requires_grad_(False).model.layers[run[0] - 1].patch.weight.requires_grad_()
    optimizer = torch.optim.AdamW([weight], SLOW, weight_decay=0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PASSES * len(ids))
    for _ in range(PASSES):
        for some, (logits, places) in zip(ids.split(1), kept, strict=True):
            with autocast():
                found = pruned(input_ids=some, use_cache=False).logits.float().gather(-1, places)
            optimizer.zero_grad()
            own, wanted = (part.log_softmax(-1).flatten(0, 1) for part in (found, logits))
            F.kl_div(own, wanted, reduction="batchmean", log_target=True).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
    return run, pruned.requires_grad_(True)


def prune_and_comp(network: Any, ids: Tensor, count: int) -> tuple[list[int], Any]:
    """Return the blocks in order of removal, and the network with the magnitude of its stream restored each time.

    Prune & Comp (arXiv 2507.18212): the block of least influence is removed, and all writers to the stream before it
    are scaled by the ratio of the stream's mean magnitude after and before the block. Scores are measured again each
    time.
    """
    pruned = deep_copy(network).eval()
    if pruned.config.tie_word_embeddings:  # the scale of the embedding is not that of the logits
        pruned.config.tie_word_embeddings = False
        pruned.lm_head.weight = nn.Parameter(pruned.lm_head.weight.detach().clone())
    left, gone = list(range(len(pruned.model.layers))), []
    for _ in range(count):
        states = hidden_states(pruned, ids)
        influence = [float(cosine_distance(*pair).mean()) for pair in zip(states[:-1], states[1:], strict=True)]
        number = min(range(len(left)), key=lambda i: influence[i])
        ratio = float(states[number + 1].norm(dim=-1).mean() / states[number].norm(dim=-1).mean())
        pruned.model.embed_tokens.weight.data.mul_(ratio)
        for layer in pruned.model.layers[:number]:
            layer.self_attn.o_proj.weight.data.mul_(ratio)
            layer.mlp.down_proj.weight.data.mul_(ratio)
        gone.append(left.pop(number))
        pruned = without(pruned, [number])
    return gone, pruned
