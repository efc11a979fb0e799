"""Config class of Nemotron-NAS folders: a Llama's config with an entry for each layer.

The file is copied into every folder of the format: transformers lacks the class, and opens the copy with
`trust_remote_code=True`. The file therefore imports only transformers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers import LlamaConfig


class DeciLMConfig(LlamaConfig):  # type: ignore[misc]
    """Config of a decoder whose layers differ.

    Args:
        block_configs: Entries of the layers, each with `attention` (`no_op`, `n_heads_in_group`) and `ffn` (`no_op`,
            `ffn_mult`).
        kwargs: Entries of `LlamaConfig`.
    """

    model_type = "nemotron-nas"

    def __init__(self, block_configs: list[dict[str, dict[str, Any]]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block_configs = [
            SimpleNamespace(**{part: SimpleNamespace(**entries) for part, entries in block.items()})
            for block in block_configs or []
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as plain data."""
        found = dict(super().to_dict())
        blocks = self.block_configs
        found["block_configs"] = [{part: vars(entries) for part, entries in vars(block).items()} for block in blocks]
        return found
