"""A decoding step of a Llama on a GPU, in two modes: eager, and compiled and captured.

Both read keys and values of a fixed size and write at the same position each time, so that every call does the same
work. Eager calls the modules in turn. Compiled is the way of servers: every block compiled by torch.compile with
inductor, and the step of a token replayed as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PROMPT, LENGTH = 64, 128  # known tokens, and room for tokens


class Memory:
    """Keys and values of a block, of a fixed size; a step overwrites a single position.

    Args:
        config: Configuration of the network.
        like: Tensor with the dtype, device and batch size of the keys.
    """

    def __init__(self, config: Any, like: Tensor) -> None:
        shape = (len(like), config.num_key_value_heads, LENGTH, config.head_dim)
        self.keys, self.values = torch.randn_like(like.new_empty(shape)), torch.randn_like(like.new_empty(shape))
        self.position = torch.tensor([PROMPT], device=like.device)

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the keys and values of a token, `(B, heads, 1, C)`, and return all."""
        self.keys.index_copy_(2, self.position, keys)
        self.values.index_copy_(2, self.position, values)
        return self.keys, self.values


class Step:
    """Decodes a token with a network, and returns the logits.

    Args:
        network: Llama, perhaps with shared blocks.
        batch: Number of sequences.
    """

    def __init__(self, network: Any, batch: int) -> None:
        self.network, weight = network, network.lm_head.weight
        self.token = torch.full((batch, 1), 7, device=weight.device)
        hidden = weight.new_empty(batch, 1, 1)
        self.memories = [Memory(network.config, hidden) for _ in network.model.layers]
        self.position = torch.tensor([[PROMPT]], device=weight.device)
        room = torch.arange(LENGTH, device=weight.device)
        self.mask = torch.where(room <= PROMPT, 0.0, float("-inf")).to(weight.dtype).expand(batch, 1, 1, -1)

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        """Return the logits behind the token, `(B, V)`."""
        model, states = self.network.model, self.network.model.embed_tokens(self.token)
        angles = model.rotary_emb(states, self.position)
        for layer, memory in zip(model.layers, self.memories, strict=True):
            states = self.through(layer, states, angles, memory)
        logits: Tensor = self.network.lm_head(model.norm(states))[:, -1]
        return logits

    def through(self, layer: nn.Module, states: Tensor, angles: tuple[Tensor, Tensor], memory: Memory) -> Tensor:
        """Run a block."""
        return _block(layer, states, angles, self.mask, memory)


class CapturedStep(Step):
    """Step with compiled blocks, replayed as a CUDA graph where there is a GPU."""

    def __init__(self, network: Any, batch: int) -> None:
        super().__init__(network, batch)
        self.graph: Any = None
        super().__call__()  # compiles
        if self.token.is_cuda:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = super().__call__()

    def __call__(self) -> Tensor:
        """Return the logits behind the token, `(B, V)`."""
        if self.graph is None:
            return super().__call__()
        self.graph.replay()
        return self.logits

    def through(self, layer: nn.Module, states: Tensor, angles: tuple[Tensor, Tensor], memory: Memory) -> Tensor:
        """Run a block by the compiled code of all blocks."""
        return _compiled(layer, states, angles, self.mask, memory)


def _block(layer: Any, states: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor, memory: Memory) -> Tensor:
    given = {"attention_mask": mask, "position_embeddings": angles, _CACHE: memory}
    output = layer(states, **given)
    return output if isinstance(output, Tensor) else output[0]


def _name_of_cache() -> str:
    """Return the argument name for keys and values of a block in the installed version of transformers."""
    import inspect

    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from prunerecover.model.key_values import CACHES

    return next(name for name in CACHES if name in inspect.signature(LlamaDecoderLayer.forward).parameters)


_CACHE = _name_of_cache()
_compiled: Callable[..., Tensor] = torch.compile(_block, fullgraph=True, dynamic=False)
MODES: dict[str, type[Step]] = {"eager": Step, "compiled": CapturedStep}
