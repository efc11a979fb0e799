"""Hashes of samples and teachers, by which both are recognized.

The hash of a sample covers all arguments of the network for the sample, independent of the batch; only padding is left
out (zeros of `attention_mask` behind the last token, with the values there), since its length depends on the batch.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from prunerecover.model.batches import ModelInputs
from prunerecover.model.evaluation import device_of
from prunerecover.model.hashing import stored_parts

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)  # besides tensors


def sample_keys(inputs: ModelInputs) -> list[str]:
    """Return a hash of each sample, from values, dtypes and shapes.

    Raises:
        TypeError: If an argument of the network is neither a tensor nor a plain value.
    """
    held, lengths = inputs.to(torch.device("cpu")), text_lengths(inputs)
    samples = [held.select(torch.tensor([number])) for number in range(inputs.n_samples)]
    if lengths is not None:
        samples = [_cut(sample, length) for sample, length in zip(samples, lengths, strict=True)]
    return [_hash(sample) for sample in samples]


def text_lengths(inputs: ModelInputs) -> list[int] | None:
    """Return the number of tokens of each text before its padding on the right; None for a batch without a mask."""
    mask = inputs.kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return None
    numbers = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return [int(last) for last in (numbers * (mask != 0)).amax(1)]


def fingerprint(network: nn.Module) -> str:
    """Return a hash of all that decides a network's answers but the inputs: every weight, and autocast's dtype."""
    device = device_of(network).type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    digest = hashlib.sha256(f"{network}{dtype}".encode())
    for name, held in network.state_dict().items():
        digest.update(name.encode())
        for part in stored_parts(held) if isinstance(held, Tensor) else (held,):
            _update(digest, part)
    return digest.hexdigest()[:32]


def _cut(sample: ModelInputs, length: int) -> ModelInputs:
    form = sample.kwargs["attention_mask"].shape

    def cut(leaf: Any) -> Any:
        return leaf[:, :length] if isinstance(leaf, Tensor) and leaf.shape[:2] == form else leaf

    return ModelInputs(*tree_map(cut, (sample.args, sample.kwargs)))


def _hash(sample: ModelInputs) -> str:
    leaves, form = tree_flatten((sample.args, sample.kwargs))
    digest = hashlib.sha256(repr(form).encode())
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            raise TypeError(
                f"Expected a network whose answers are cached to be called with tensors and plain values, but got "
                f"{type(leaf).__name__}. Pass DistillRecover(cache=False)."
            )
        _update(digest, leaf)
    return digest.hexdigest()[:32]


def _update(digest: Any, leaf: Any) -> None:
    if not isinstance(leaf, Tensor):
        digest.update(repr(leaf).encode())
        return
    digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
    digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
