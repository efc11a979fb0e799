"""Small decoders and encoders with states of branches: in caches, in lists, or in written tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases.models.tiny import SPECIAL, VOCABULARY
from torch import Tensor, nn

Case = tuple[nn.Module, dict[str, Tensor]]
TEXT = {
    **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"head_dim": 8, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
STATES = {"mamba_d_state": 4, "mamba_d_conv": 3, "mamba_expand": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "Lfm2ForCausalLM": {**TEXT, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3},
    "JambaForCausalLM": {
        **{**TEXT, **STATES, "num_experts": 4, "mamba_dt_rank": 4},
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
    },
    "Qwen3NextForCausalLM": {**TEXT, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    "Qwen3_5ForCausalLM": {**TEXT, **DELTA},
    "Zamba2ForCausalLM": {
        **{**TEXT, **STATES, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
        **{"hybrid_layer_ids": [1, 3], "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16},
        **{"chunk_size": 8, "num_mem_blocks": 1, "adapter_rank": 4},
    },
    "GraniteMoeHybridForCausalLM": {
        **{**TEXT, **STATES, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4},
        **{"num_experts_per_tok": 2, "shared_intermediate_size": 16, "mamba_n_heads": 4, "mamba_d_head": 16},
        **{"mamba_n_groups": 1, "mamba_chunk_size": 8},
    },
    "BambaForCausalLM": {
        **{**TEXT, **STATES, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1},
        **{"mamba_chunk_size": 8},
    },
    "NemotronHForCausalLM": {
        **{**TEXT, "num_hidden_layers": 4, "hybrid_override_pattern": "M-*M", "head_dim": 8, "mamba_num_heads": 4},
        **{"mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 4, "chunk_size": 8},
    },
    "BigBirdForMaskedLM": {**TEXT, "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
    "ReformerForMaskedLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "attention_head_size": 8},
        **{"feed_forward_size": 48, "attn_layers": ["local", "local"], "local_attn_chunk_length": 8},
        **{"axial_pos_embds": False, "is_decoder": False},
    },
    "FalconMambaForCausalLM": {
        **{**SPECIAL, "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 4},
        **{"time_step_rank": 4},
    },
}


def hybrid(name: str) -> Case:
    """Return a network of transformers by class name, and a batch of tokens."""
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, name)
    tokens = torch.arange(96).view(2, 48) % 53 + 3
    return made(made.config_class(**SETTINGS[name])).eval(), {"input_ids": tokens}


class Mixer(nn.Module):
    """Recurrence with the last values kept in a list."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.fused, self.gate, self.out = nn.Linear(d, 2 * d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
        keys, values = self.fused(x).chunk(2, -1)
        kept.append(values[:, -2:])
        rows = torch.zeros_like(x)
        state = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = 0.5 * state + keys[:, t] * values[:, t]
            rows[:, t] = state  # a state that is written
        return self.out(rows * self.gate(x).sigmoid())


class Recurrent(nn.Module):
    """Blocks with a mixer and an MLP.

    Args:
        name: Name of the state in the output.
    """

    def __init__(self, name: str, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.stem, self.head = name, nn.Linear(4, d), nn.Linear(d, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4))
        self.mixers = nn.ModuleList(Mixer(d) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, Any]:
        x, kept = self.stem(x), list[Tensor]()
        for n in range(2):
            x = x + self.mixers[n](self.norms[2 * n](x), kept)
            x = x + self.mlps[n](self.norms[2 * n + 1](x))
        return {"logits": self.head(x), self.name: kept}


class Lookahead(nn.Module):
    """Two branches behind a single norm, like parallel attentions and MLPs, and norms of single branches."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.head = nn.Linear(4, d), nn.LayerNorm(d), nn.Linear(d, 3)
        self.one, self.other = (nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        normed = self.norm(x)
        return self.head(x + self.one(normed) + self.other(normed))  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """Block with an adapter, or a scaling parameter, handed in by the network."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor, adapter: nn.Module | Tensor) -> Tensor:
        normed = self.norm(x)
        added = adapter * normed if isinstance(adapter, Tensor) else adapter(normed)
        return x + self.down((self.up(normed) + added).relu())  # type: ignore[no-any-return]


class Lending(nn.Module):
    """Network with the adapters of all blocks.

    Args:
        rank: Width inside an adapter; None: a bare parameter instead.
    """

    def __init__(self, rank: int | None, d: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(4, d), nn.Linear(d, 3)
        self.adapters: Any = nn.ParameterList(torch.ones(d) for _ in range(2))
        if rank is not None:
            self.adapters = nn.ModuleList(nn.Linear(d, rank) for _ in range(2))
        self.blocks = nn.ModuleList(Adapted(d) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, adapter in zip(self.blocks, self.adapters, strict=True):
            x = block(x, adapter)
        return self.head(x)  # type: ignore[no-any-return]


def grown(model: nn.Module, inputs: Callable[[nn.Module], Tensor]) -> set[str]:
    """Return the names of the parameters with gradients of a loss in training mode."""
    model.train()
    inputs(model).square().mean().backward()
    found = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    model.eval()
    return found
