"""Outlines of networks: the properties fixed by a constructor, and the differences between two networks.

The comparison covers the text (`repr`), names and shapes of tensors, plain attributes of modules (heads, scales,
pooling), and buffers outside the state dict. Attributes written by a forward pass are left out, as a used network
differs from a new network there. So is the index of the token that pads, unless a forward computes with it: a Trainer
of transformers writes the tokenizer's into the config of a model that was built without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.settings import as_tuples, is_plain, named_by_forward, written_by_forward

# Attributes without effect on the output of a model in evaluation mode.
BYSTANDERS = frozenset(
    {"training", "init_values", "fused_attn", "grad_checkpointing", "gradient_checkpointing", "distilled_training"}
    | {"weight_init_mode", "fix_init", "name_or_path", "loss_type"}
)
PADDING = "padding_idx"  # row of an embedding without a gradient, otherwise ordinary
IN_TEXT = re.compile(rf"(\bEmbedding\([^)]*), {PADDING}=\d+")
SHOWN = 80  # characters of a text or a value
Entries = dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """Properties of a network fixed by its constructor.

    Attributes:
        text: Lines of the network's `repr`, below the name of its class.
        shapes: Shapes of all tensors of the state dict, by name.
        attributes: Numbers, words, tuples and lists on every module, by path and name.
        tables: Buffers outside the state dict, by name.
    """

    text: list[str]
    shapes: Entries
    attributes: Entries
    tables: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, bystanders: frozenset[str] = frozenset()) -> Outline:
        """Outline a network.

        Args:
            model: Network on any device; not changed.
            bystanders: Attributes, beyond `BYSTANDERS`, without effect on the output.
        """
        state = model.state_dict()
        shapes = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
        tables = {name: buffer for name, buffer in model.named_buffers() if name not in state}
        ignored = BYSTANDERS | bystanders | written_by_forward(model) | ({PADDING} - named_by_forward(model))
        return cls([type(model).__name__, *text_of(model).splitlines()], shapes, _attributes(model, ignored), tables)

    def differences(self, built: Outline) -> Iterator[str]:
        """Yield the differences of a rebuilt network from the outlined network, as text."""
        for line, other in zip_longest(self.text, built.text, fillvalue=""):
            if line != other:
                yield f"it has {_short(line)} where {_short(other)} is built"
        for name, own, other in _differing(self.shapes, built.shapes):
            yield f"its tensor {name} has shape {own}, but {other} as built"
        for name, own, other in _differing(self.attributes, built.attributes):
            yield f"its {name} is {_short(own)}, but {_short(other)} as built"
        for name, table in self.tables.items():
            if not _same_table(built.tables.get(name), table):
                yield f"its buffer {name}, which no file holds, has other values than as built"


def text_of(model: nn.Module) -> str:
    """Return the `repr` of a network, without the index of the token that pads in embeddings."""
    return IN_TEXT.sub(r"\1", repr(model))


def _attributes(model: nn.Module, ignored: frozenset[str]) -> Entries:
    """Return the numbers, words, tuples and lists on every module that `repr` leaves out, by path and name."""
    return {
        f"{path}{path and '.'}{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in ignored and name[0] != "_" and value is not None and is_plain(as_tuples(value))
    }


def _differing(own: Entries, built: Entries) -> Iterator[tuple[str, Any, Any]]:
    for name in own | built:
        pair = own.get(name, "missing"), built.get(name, "missing")
        kinds = set(map(type, pair))
        # Lists may grow with use, and JSON turns tuples into lists.
        if (list not in kinds or tuple in kinds) and as_tuples(pair[0]) != as_tuples(pair[1]):
            yield name, *pair


def _same_table(built: Tensor | None, own: Tensor) -> bool:
    """Whether a buffer outside the state dict (a rotary table) has the built values; True on meta, without values."""
    if own.is_meta:
        return True
    return built is not None and not built.is_meta and torch.equal(built.to(own.dtype), own.cpu())


def _short(value: Any) -> str:
    return str(value).strip()[:SHOWN] or "nothing"
