"""Low-rank adapters (LoRA, Hu 2021, arXiv 2106.09685) by peft: injected on a plain network, and merged into it exactly.

While adapters are injected, a linear W computes W x + (alpha / rank) B A x, where only A and B train. Remaining names
and objects of the network stay; merging adds the product to W and leaves no module of peft behind. Surgery works on
plain networks, so adapters are merged before surgery and injected anew afterwards. As in peft, the adapters of weights
in half precision are float32: steps of an optimizer are lost in float16. Not covered: fused experts, linears with a
shared weight, DoRA and further variants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import nn
from torch.nn import Parameter

from prunerecover.families.standard_saving import check_saving, uncheck_saving
from prunerecover.files.in_short import validated
from prunerecover.model.checks import check_unquantised
from prunerecover.model.paths import get_module, is_of_peft, parent_path, unwrap
from prunerecover.plan.records import Items, Source
from prunerecover.recovery.lora_targets import adaptable, chosen_modules, trained_names
from prunerecover.surgery.apply_edits import Applied
from prunerecover.surgery.provenance import source_of

BASE = "base_layer"  # peft's name for the linear inside an adapted one
ADAPTER = "default"  # peft's name for the only adapter


class LoraSettings(BaseModel):
    """Settings of adapters.

    Attributes:
        rank: Rows of A and columns of B.
        alpha: Scale of the product, as alpha / rank.
        dropout: Share of the inputs of an adapter to set to zero in training.
        target_modules: Shell patterns of modules to adapt, as whole paths or ends of paths ("qkv"); None: every linear
            of the blocks; where no blocks are known, every linear but the last.
        modules_to_save: Shell patterns of modules to train in full, likewise; None: modules after the blocks (final
            norm and head); where no blocks are known, the last linear. All biases, norms and scales train, too, since
            they are few; with no pattern, `()`, the adapters train alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] | None = None


class Adapters(BaseModel):
    """Adapters on a network, as data: enough to inject the adapters again from a checkpoint.

    Attributes:
        settings: Settings of the adapters.
        modules: Paths of the adapted modules.
        frozen: Names of the parameters that the adapters freeze, trainable otherwise.
        source: Source of the network under the adapters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: LoraSettings
    modules: Items[str]
    frozen: Items[str]
    source: Source = Source()

    @field_validator("settings", mode="before")
    @classmethod
    def _without_vectors(cls, given: Any) -> Any:
        """Leave out an entry of earlier files: `modules_to_save` says the same."""
        return {k: v for k, v in given.items() if k != "vectors"} if isinstance(given, Mapping) else given

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Adapters:
        """Validate primitives.

        Raises:
            ValueError: If the primitives describe no adapters.
        """
        return validated(cls, data, "a description of adapters", "Was it written by a newer prunerecover?")


def plan_adapters(network: nn.Module, settings: LoraSettings) -> Adapters:
    """Decide on the modules to adapt and the parameters to freeze; the network is not changed.

    Replacements of a branch or an activation train in full, except linears: a replacement is new, and small.

    Args:
        network: Plain network, wrapped or not.
        settings: Settings of the adapters.

    Raises:
        ValueError: If no module is to be adapted, weights are quantised, or the network has adapters already.
        TypeError: If `settings` is no `LoraSettings`.
    """
    network = unwrap(network)
    _check_is(settings, LoraSettings, "LoraSettings(rank=16, alpha=32)")
    if has_adapters(network):
        raise ValueError(
            f"Expected a {type(network).__name__} without adapters, but it has adapters of peft. Merge them first "
            "(merge_and_unload), or train these adapters instead."
        )
    check_unquantised(
        network,
        "to adapt",
        ", and merging would round what was learnt. Recover first, and quantise the merged weights.",
    )
    chosen = chosen_modules(network, settings.target_modules)
    trained = trained_names(network, settings.modules_to_save)
    weights = {f"{path}.weight" for path in chosen}
    frozen = [n for n, p in network.named_parameters() if p.requires_grad and (n in weights or n not in trained)]
    return Adapters(settings=settings, modules=tuple(chosen), frozen=tuple(frozen), source=source_of(network))


def inject_adapters(network: nn.Module, adapters: Adapters, seed: int = 0) -> Applied:
    """Inject adapters into a network, in place; B is zero, so the output stays the same; the random state does, too.

    Args:
        network: Plain network from the planning, on any device.
        adapters: Adapters from `plan_adapters`.
        seed: Seed of the initial values of A.

    Returns:
        The frozen parameters as removed and the parameters of the adapters as added, for `update_optimizer`.

    Raises:
        ValueError: If the network lacks a module to adapt or a parameter to freeze.
        ImportError: If peft is missing. After any error the network is as before.
    """
    network = unwrap(network)
    _check_is(adapters, Adapters, "what plan_adapters returned")
    named = dict(network.named_parameters())
    _check_there(network, adapters, named)
    flags = {name: p.requires_grad for name, p in named.items()}
    plain = {path: get_module(network, path) for path in adapters.modules}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # peft draws on the CPU alone
            _inject(network, adapters)
    except BaseException:
        for path, module in plain.items():
            setattr(get_module(network, parent_path(path)), path.rpartition(".")[2], module)
        for name, parameter in named.items():
            parameter.requires_grad_(flags[name])
        raise
    check_saving(network, "adapters")
    for name, parameter in named.items():
        parameter.requires_grad_(flags[name] and name not in adapters.frozen)
    added: dict[str, tuple[Parameter, Parameter]] = {}
    for path in adapters.modules:
        layer = get_module(network, path)
        layer.train(get_module(layer, BASE).training)
        added |= {name: (new, named[f"{path}.weight"]) for name, new in _added_at(network, path).items()}
    return Applied({name: named[name] for name in adapters.frozen}, added)


def merge_adapters(network: nn.Module, adapters: Adapters, *, structure_only: bool = False) -> Applied:
    """Add the products of the adapters to the weights and remove the adapters, in place; frozen parameters train again.

    Args:
        network: Network with exactly these adapters injected.
        adapters: Adapters as injected.
        structure_only: Whether the weights stay, to be loaded from a checkpoint.

    Returns:
        The parameters of the adapters as removed, and the merged weights as added.

    Raises:
        ValueError: If the adapters are not there.
    """
    network = unwrap(network)
    _check_is(adapters, Adapters, "what plan_adapters returned")
    for path in adapters.modules:
        if not is_of_peft(get_module(network, path)):
            raise ValueError(
                f"Expected an adapter at '{path}' of {type(network).__name__}, but it is plain. Was it merged before?"
            )
    removed: dict[str, Parameter] = {}
    added: dict[str, tuple[Parameter, Parameter]] = {}
    for path in adapters.modules:
        layer: Any = get_module(network, path)
        if not structure_only:
            layer.merge()
        base, name = layer.get_base_layer(), path.rpartition(".")[2]
        own = _added_at(network, path)
        removed |= own
        if f"{path}.weight" in adapters.frozen:
            added[f"{path}.weight"] = (base.weight, next(iter(own.values())))
        setattr(get_module(network, parent_path(path)), name, base.train(layer.training))
    uncheck_saving(network, "adapters")
    for parameter in frozen_parameters(network, adapters).values():
        parameter.requires_grad_(True)
    return Applied(removed, added)


def frozen_parameters(network: nn.Module, adapters: Adapters) -> dict[str, Parameter]:
    """Return the frozen parameters, by name in the network without adapters."""
    found = {}
    for name in adapters.frozen:
        module = get_module(unwrap(network), parent_path(name))
        holder = module.get_submodule(BASE) if is_of_peft(module) else module
        found[name] = holder.get_parameter(name.rpartition(".")[2])
    return found


def adapter_parameters(network: nn.Module, adapters: Adapters) -> dict[str, Parameter]:
    """Return the parameters of the adapters, by name."""
    return {n: p for path in adapters.modules for n, p in _added_at(unwrap(network), path).items()}


def _added_at(network: nn.Module, path: str) -> dict[str, Parameter]:
    layer = get_module(network, path)
    return {f"{path}.{n}": p for n, p in layer.named_parameters() if not n.startswith(f"{BASE}.")}


def has_adapters(network: nn.Module) -> bool:
    """Whether any module is from peft."""
    return any(map(is_of_peft, network.modules()))


def _check_is(value: object, wanted: type, example: str) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"Expected {wanted.__name__}, but got {type(value).__name__}. Pass {example}.")


def _inject(network: nn.Module, adapters: Adapters) -> None:
    """Have peft replace exactly the named modules.

    peft sees the network as a part of another module: where a config declares a mixture of experts, peft would take the
    names of projections for fused experts, and skip dense projections of the same name.
    """
    try:
        from peft import LoraConfig
        from peft.functional import cast_adapter_dtype, inject_adapter_in_model
    except ImportError as error:
        raise ImportError(f"Expected peft for LoRA, but it cannot be imported ({error}). pip install peft") from error
    transposed = any(type(get_module(network, path)).__name__ == "Conv1D" for path in adapters.modules)
    config = LoraConfig(
        r=adapters.settings.rank,
        lora_alpha=adapters.settings.alpha,
        lora_dropout=adapters.settings.dropout,
        target_modules="|".join(re.escape(f"network.{path}") for path in adapters.modules),  # a pattern of whole paths
        fan_in_fan_out=transposed,
    )
    inject_adapter_in_model(config, nn.ModuleDict({"network": network}), ADAPTER)
    cast_adapter_dtype(network, ADAPTER)


def _check_there(network: nn.Module, adapters: Adapters, named: Mapping[str, Parameter]) -> None:
    can_be = set(adaptable(network))
    missing = [path for path in adapters.modules if path not in can_be]
    missing += [name for name in adapters.frozen if name not in named]
    if missing or has_adapters(network):
        what = f"has no plain '{missing[0]}'" if missing else "has adapters already"
        raise ValueError(
            f"Expected the network that the adapters were planned for, but this {type(network).__name__} {what}. "
            "Was it pruned since? Plan them anew with plan_adapters."
        )
