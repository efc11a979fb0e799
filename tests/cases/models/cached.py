"""Surgery in depth on transformers models, and generation with the cache beside generation without."""

from __future__ import annotations

from typing import Any

import torch
from cases.models.tiny import tiny_inputs
from torch import Tensor, nn

from prunerecover.families.describe import describe
from prunerecover.model.key_values import cache_returned
from prunerecover.model.paths import get_module, set_module
from prunerecover.model.replacements import Nothing
from prunerecover.surgery.transformers_depth import apply_config, config_edits, renumber


def remove_attentions(model: nn.Module, *indices: int) -> None:
    blocks = describe(model).blocks
    for index in indices:
        branch = blocks[index].attention
        assert branch is not None
        set_module(model, branch.path, Nothing(branch.returns))
        for path in branch.followers:
            set_module(model, path, nn.Identity())


def keep_blocks(model: nn.Module, *kept: int) -> tuple[nn.ModuleList, dict[str, Any]]:
    """Remove all other blocks as surgery does; return the data for an undo."""
    edits = config_edits(model, kept)
    container = describe(model).container
    before = get_module(model, container)
    assert isinstance(before, nn.ModuleList)
    set_module(model, container, nn.ModuleList(before[i] for i in kept))
    old = apply_config(model, edits)
    renumber(model)
    return before, old


def numbers(model: nn.Module) -> list[int]:
    return [module.layer_idx for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]


@torch.no_grad()
def uncached(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


@torch.no_grad()
def cached(model: nn.Module, ids: Tensor, steps: tuple[int, ...] = (5, 4, 1, 1, 3)) -> Tensor:
    """Return logits from a few tokens at a time, with positions derived from the cache."""
    cache: dict[str, Any] = {}
    logits = []
    for chunk in ids.split(steps, dim=1):
        out = model(input_ids=chunk, **cache, use_cache=True)
        cache = cache_returned(out)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


def generated(model: nn.Module, use_cache: bool = True) -> Tensor:
    """Greedy continuation of a left-padded batch: logits `(steps, B, V)`."""
    ids = tiny_inputs("text")["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    settings = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "use_cache": use_cache}
    out = model.generate(ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **settings)
    return torch.stack(out.logits)


def handing_on(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """Hook to make a layer return the input."""
    hidden = args[0] if args else kwargs["hidden_states"]
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def assert_cache_is_exact(model: nn.Module) -> None:
    ids = tiny_inputs("text", length=14)["input_ids"]
    torch.testing.assert_close(cached(model, ids), uncached(model, ids), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(generated(model), generated(model, use_cache=False), atol=1e-4, rtol=1e-4)
