"""Layer numbers and config depth of a transformers model, kept standard after surgery.

An attention finds keys and values in the cache by `layer_idx`. The model reads the progress of generation off cache
slot 0, and the sizes of masks off the first slot of each layer type. So the remaining attentions move to the first
slots of their type, and cached generation equals uncached generation. After the removal of whole blocks,
`num_hidden_layers` (`encoder_layers` and `decoder_layers` of models with two lists of blocks) and the per-layer lists
(`layer_types`) follow, and `save_pretrained` and `from_pretrained` rebuild the same model.

Order of use: `config_edits` before the removal (only a computation), then the removal, `apply_config`, `renumber`. To
undo: put the blocks back, `apply_config` with the values returned by the first call, `renumber`. Models from outside
transformers have neither numbers nor config, and the same calls have no effect. Config entries for mixtures of experts,
by indices or a step (Qwen, Llama 4) or by the number of dense first layers (DeepSeek), and the indices of attentions
(Bamba) follow, too.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.families.describe import describe_blocks, describe_stacks, layout_of, unnamed_stacks
from prunerecover.families.layout import Layout
from prunerecover.families.transformers_layers import config_of
from prunerecover.model.key_values import takes_cache
from prunerecover.model.paths import get_module
from prunerecover.model.replacements import Replacement

DENSE = "mlp_only_layers"  # indices of layers, as are:
INDICES = ("moe_layers", "attn_layer_indices")
STEP, FIRST = "decoder_sparse_step", "first_k_dense_replace"
OWN_DEPTH = "num_layers"  # layers of T5's encoder; in the decoder's own copy of the config, layers of the decoder
RECURRENT = "linear_attention"  # a layer type; no model reads the progress of generation off slots of linear attentions


def config_edits(model: nn.Module, kept: Sequence[int], stack: Layout | None = None) -> dict[str, Any]:
    """Compute the config of a model with only the blocks `kept`; the model is unchanged.

    Args:
        model: Network before the removal.
        kept: Indices of the kept blocks, increasing.
        stack: List of blocks, for a model with two lists; None: the only list.

    Returns:
        Config attributes and new values, for `apply_config`; empty if the model has no config.

    Raises:
        ValueError: If `kept` is no increasing list of valid indices, or if the pruned model would not be standard: its
            layers compute with their number, or have a config each.
    """
    layout = stack or describe_blocks(model)
    depth = len(layout.blocks)
    if not kept or list(kept) != sorted({i for i in kept if 0 <= i < depth}):
        raise ValueError(
            f"Expected at least one kept block, as increasing indices from 0 to {depth - 1}, but got {list(kept)}. "
            "Was the plan made for another depth?"
        )
    config = config_of(model, layout.container)
    if config is None:
        return {}
    if len(kept) < depth:
        _refuse_numbered(config, layout, moved=kept[-1] >= len(kept))
    edits: dict[str, Any] = dict.fromkeys(layout.depth_entries, len(kept))
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list | tuple) and "layer" in name}
    for name, value in lists.items():  # SmolLM3's no_rope_layers may go on after the last layer
        if name not in (DENSE, *INDICES) and len(value) >= depth:
            edits[name] = [value[i] for i in kept]
    return edits | _numbered_layers(config, depth, kept)


def _numbered_layers(config: Any, depth: int, kept: Sequence[int]) -> dict[str, Any]:
    """Compute the entries with numbers of layers: with attention (Bamba), with a plain MLP or a mixture of experts."""
    edits: dict[str, Any] = {}
    if isinstance(listed := getattr(config, DENSE, None), list | tuple):
        step = getattr(config, STEP, 1) or 1
        dense = {i for i in range(depth) if i in listed or (i + 1) % step}
        edits[DENSE] = [new for new, old in enumerate(kept) if old in dense]
        edits |= {STEP: 1} if step != 1 else {}
    for name in INDICES:
        if isinstance(listed := getattr(config, name, None), list | tuple):
            edits[name] = [new for new, old in enumerate(kept) if old in listed]
    if isinstance(getattr(config, FIRST, None), int):
        edits[FIRST] = sum(i < getattr(config, FIRST) for i in kept)
    return edits


def apply_config(model: nn.Module, edits: dict[str, Any]) -> dict[str, Any]:
    """Set the attributes `edits` in every config object of the blocks.

    Returns:
        Previous values in the same form: applying them restores the config.

    Raises:
        ValueError: If the config lacks an attribute, or a value has another form; the model is unchanged then.
    """
    if not edits:
        return {}
    stacks = describe_stacks(model)
    layout = stacks[0]
    config = config_of(model, layout.container)
    missing = [name for name in edits if not hasattr(config, name)]
    if missing:
        raise ValueError(
            f"Expected a config with {', '.join(missing)}, but the {type(config).__name__} of this {layout.family} has "
            "no such attribute. Was the plan made for another model?"
        )
    before = {name: getattr(config, name) for name in edits}
    odd = [n for n, value in edits.items() if n.startswith("_") or not _alike(value, before[n])]
    if odd:
        raise ValueError(
            f"Expected '{odd[0]}' of the {type(config).__name__} to stay what it is ({before[odd[0]]!r:.60}), but the "
            f"plan sets it to {edits[odd[0]]!r:.60}. Was the plan edited?"
        )
    copies = [(stack, config_of(model, stack.container)) for stack in stacks[1:]]
    own = [(s, copy, getattr(copy, OWN_DEPTH)) for s, copy in copies if copy is not config and hasattr(copy, OWN_DEPTH)]
    for holder in _same_kind(model, config):
        for name, value in edits.items():
            setattr(holder, name, list(value) if isinstance(value, list | tuple) else value)
    for stack, copy, depth in own:
        setattr(copy, OWN_DEPTH, edits.get(stack.depth_entries[0], depth))
    return before


def check_depth(model: nn.Module, edits: dict[str, Any]) -> None:
    """Raise ValueError unless config edits set the model's present depth: removals of blocks come first."""
    present = {name: len(stack.blocks) for stack in describe_stacks(model) for name in stack.depth_entries}
    for name in present.keys() & edits.keys():
        if isinstance(edits[name], int) and edits[name] != present[name]:
            raise ValueError(
                f"Expected a plan that sets the config once its blocks are gone, but it sets {name}={edits[name]} "
                f"where {present[name]} blocks are left. Were its edits put into another order by hand? Plan anew."
            )


def _alike(new: Any, old: Any) -> bool:
    """Whether two values have the same form: a number or word, or a list of them; an empty list is of indices."""
    if isinstance(old, list | tuple):
        return isinstance(new, list | tuple) and all(any(_alike(n, o) for o in old or [0]) for n in new)
    return type(new) is type(old) and isinstance(new, bool | int | float | str)


def renumber(model: nn.Module) -> None:
    """Give every remaining attention a cache slot (`layer_idx`), in order of depth within the layer type.

    Slots depend on the present structure only: after an undo, the same call restores the slots. Models without a
    supported family, for example convolutional networks, have none.

    Raises:
        RuntimeError: If the config's `layer_types` do not fit the blocks: `apply_config` comes first.
    """
    numbered = any(hasattr(module, "layer_idx") for module in model.modules())
    layout = layout_of(model) if numbered else None
    if layout is None:
        return
    types = getattr(config_of(model, layout.container), "layer_types", None) or ["any"] * len(layout.blocks)
    if len(types) != len(layout.blocks):
        raise RuntimeError(
            f"Expected one entry of the config's layer_types per block, but got {len(types)} for {len(layout.blocks)} "
            "blocks. Apply the edits of config_edits before renumber."
        )
    for part, owners in _numbered_parts(model, layout).items():
        free = {kind: iter([slot for slot, k in enumerate(types) if k == kind]) for kind in types}
        for index, module in owners:
            if not _computes_with_number(module):
                module.layer_idx = next(free[types[index]])  # type: ignore[assignment]
        if part and all(module.layer_idx != 0 for _, module in owners):
            warnings.warn(
                f"No '{part}' that is left can use cache slot 0, off which the model reads how far it has come. "
                "Generate with use_cache=False, or keep the attention of the first block.",
                stacklevel=2,
            )


def numbered_after(model: nn.Module, stack: Layout, gone: int) -> list[tuple[str, int]]:
    """List the modules with block numbers behind a removed block, in layers of unknown parts.

    Args:
        model: Network before the removal.
        stack: List of blocks; blocks of supported families are renumbered as a whole.
        gone: Index of the removed block.

    Returns:
        Paths of the modules after the removal, each with the new number.
    """
    moved = []
    for index, block in enumerate(stack.blocks[gone + 1 :], gone + 1):
        for path, module in get_module(model, block.path).named_modules():
            if getattr(module, "layer_idx", None) == index:
                moved.append((f"{stack.container}.{index - 1}{path and '.'}{path}", index - 1))
    return moved


def freed_slots(model: nn.Module) -> list[tuple[str, int]]:
    """List the attentions to move up to freed cache slots, in layers of unknown parts.

    The slots move only if every layer, or every layer of a type in the config, has or had an attention, and the numbers
    increase with depth: otherwise the model may compute with them. Slots stay in models that share slots, and for
    linear attentions: MiniMax fills a list of states in order of execution, where a lower number is missing.

    Returns:
        Paths of the modules, each with the slot; empty for models of supported families: see `renumber`.
    """
    return [found for stack in unnamed_stacks(model) for found in _freed_slots(model, stack)]


def _freed_slots(model: nn.Module, stack: Layout) -> list[tuple[str, int]]:
    config, depth = config_of(model, stack.container), len(stack.blocks)
    types = getattr(config, "layer_types", None) or ["any"] * depth
    if len(types) != depth or getattr(config, "num_kv_shared_layers", None):
        return []
    found = []
    for part, owners in _numbered_parts(model, stack).items():
        present = {index: module for index, module in owners if part and takes_cache(module)}
        gone = {i for i, block in enumerate(stack.blocks) if _is_gone(get_module(model, block.path), part)}
        for kind in dict.fromkeys(kind for kind in types if kind != RECURRENT):
            slots = [i for i, k in enumerate(types) if k == kind]
            here = [i for i in slots if i in present]
            numbers = [present[i].layer_idx for i in here]
            alike = present.keys() | gone >= set(slots) and numbers == sorted(numbers)  # type: ignore[type-var]
            if here and alike and gone & set(slots):
                found += [(f"{stack.blocks[i].path}.{part}", slot) for i, slot in zip(here, slots, strict=False)]
    return found


def _is_gone(block: nn.Module, part: str) -> bool:
    """Whether a replacement stands at a part of a block, or at a module around the part."""
    for name in part.split("."):
        if isinstance(block, Replacement) or not isinstance(getattr(block, name, None), nn.Module):
            break
        block = getattr(block, name)
    return isinstance(block, Replacement)


def _numbered_parts(model: nn.Module, layout: Layout) -> dict[str, list[tuple[int, nn.Module]]]:
    """Modules with a number, each with the index of the block, by path inside the block."""
    parts: dict[str, list[tuple[int, nn.Module]]] = defaultdict(list)
    for index, block in enumerate(layout.blocks):
        for path, module in get_module(model, block.path).named_modules():
            if isinstance(getattr(module, "layer_idx", None), int) and not isinstance(module, Replacement):
                parts[path].append((index, module))
    return parts


def _computes_with_number(module: nn.Module) -> bool:
    """Whether GPT-2 divides by the number at each call, as before transformers fixed the scale on construction."""
    return bool(getattr(module, "scale_attn_by_inverse_layer_idx", False)) and not hasattr(module, "scaling")


def _refuse_numbered(config: Any, layout: Layout, moved: bool) -> None:
    """Raise ValueError if a layer depends on its number; `moved`: whether a kept block gets another number."""
    reasons = {"scale_attn_by_inverse_layer_idx": moved, "is_heterogeneous": True}
    for name, matters in reasons.items():
        if matters and getattr(config, name, False):
            raise ValueError(
                f"Expected a {layout.family} whose layers do not depend on their number, but its config has "
                f"{name} = True: with blocks removed it could not be reloaded. Remove attention or mlp units instead."
            )


def _same_kind(model: nn.Module, config: Any) -> list[Any]:
    """All config objects of the class of the blocks' config: a larger model may hold another as `text_config`."""
    held = [module.config for module in model.modules() if hasattr(module, "config")]
    nested = [value for holder in held for value in vars(holder).values()]
    return list({id(c): c for c in (*held, *nested) if type(c) is type(config)}.values())
