"""Low-rank adapters (LoRA, Hu 2021, arXiv 2106.09685) by peft: injected on a plain network, and merged into it exactly.

While adapters are injected, a linear W computes W x + (alpha / rank) B A x, where only A and B train. They sit inside
the network, whose other names and objects stay; merging adds the product to W and leaves no module of peft behind.
Surgery works on plain networks, so adapters are merged before it and injected anew afterwards. As in peft, the adapters
of weights in half precision are float32: steps of an optimizer are lost in float16. Not covered: fused experts, linears
that share a weight, DoRA and other variants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn
from torch.nn import Parameter

from prunerecover.families.standard_saving import check_saving, uncheck_saving
from prunerecover.files.in_short import errors_in_short
from prunerecover.model.checks import check_unquantised
from prunerecover.model.paths import get_module, is_of_peft, parent_path, unwrap
from prunerecover.plan.records import Items, Source
from prunerecover.recovery.lora_targets import adaptable, chosen_modules, trained_names
from prunerecover.surgery.apply_edits import Applied
from prunerecover.surgery.provenance import source_of

BASE = "base_layer"  # what peft calls the linear inside its own
ADAPTER = "default"  # peft's name for the only adapter


class LoraSettings(BaseModel):
    """How adapters are made.

    Attributes:
        rank: Rows of A and columns of B.
        alpha: The product counts alpha / rank times.
        dropout: Share of an adapter's inputs that is zero in training.
        target_modules: Shell patterns of what is adapted, as whole paths or their ends ("qkv"); None: every linear of
            the blocks; where no blocks are known, every linear but the last.
        modules_to_save: Shell patterns of what trains in full besides, alike; None: what comes after the blocks (final
            norm and head); where no blocks are known, the last linear.
        vectors: Whether biases, norms and scales train in full: they are few.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] | None = None
    vectors: bool = True


class Adapters(BaseModel):
    """Adapters on one network, as data: what a checkpoint needs to inject them again.

    Attributes:
        settings: How they are made.
        modules: Paths of what is adapted.
        frozen: Names of the parameters that train otherwise.
        source: The network under them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: LoraSettings
    modules: Items[str]
    frozen: Items[str]
    source: Source = Source()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready primitives."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Adapters:
        """Validate primitives.

        Raises:
            ValueError: If this describes no adapters.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ValueError(
                f"Expected a description of adapters, but {errors_in_short(error)}. Was it written by a newer "
                "prunerecover?"
            ) from None


def plan_adapters(network: nn.Module, settings: LoraSettings) -> Adapters:
    """Decide what is adapted, and what freezes; the network is not changed.

    What surgery left in the place of a branch or an activation trains in full, but for linears: it is new, and small.

    Raises:
        ValueError: If nothing is to be adapted, weights are quantised, or the network has adapters already.
    """
    network = unwrap(network)
    _check_is(settings, LoraSettings, "LoraSettings(rank=16, alpha=32)")
    if has_adapters(network):
        raise ValueError(
            f"Expected a {type(network).__name__} without adapters, but it has some of peft. Merge them first "
            "(merge_and_unload), or leave the adapters to them."
        )
    check_unquantised(
        network,
        "to adapt",
        ", and merging would round what was learnt. Recover first, and quantise the merged weights.",
    )
    chosen = chosen_modules(network, settings.target_modules)
    trained = trained_names(network, settings.modules_to_save, settings.vectors)
    weights = {f"{path}.weight" for path in chosen}
    frozen = [n for n, p in network.named_parameters() if p.requires_grad and (n in weights or n not in trained)]
    return Adapters(settings=settings, modules=tuple(chosen), frozen=tuple(frozen), source=source_of(network))


def inject_adapters(network: nn.Module, adapters: Adapters, seed: int = 0) -> Applied:
    """Put adapters into a network, in place; B is zero, so its output stays what it was. The random state, too.

    Args:
        network: The plain network they were planned for, on any device.
        adapters: What `plan_adapters` returned.
        seed: Of A's initial values.

    Returns:
        The frozen parameters as removed and those of the adapters as added, for `update_optimizer`.

    Raises:
        ValueError: If the network has not what is to be adapted or frozen.
        ImportError: If there is no peft. Whatever goes wrong, the network is left as it was.
    """
    network = unwrap(network)
    _check_is(adapters, Adapters, "what plan_adapters returned")
    named = dict(network.named_parameters())
    _check_there(network, adapters, named)
    flags = {name: p.requires_grad for name, p in named.items()}
    plain = {path: get_module(network, path) for path in adapters.modules}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # of the CPU alone, where peft draws
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
    """Add the adapters' products to the weights and take the adapters out, in place; what they froze trains again.

    Args:
        network: With exactly these adapters injected.
        adapters: As they were injected.
        structure_only: Leave the weights to a checkpoint.

    Returns:
        The adapters' parameters as removed, and the weights under them as added.

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
    """Return the parameters that adapters froze, by their names without adapters."""
    found = {}
    for name in adapters.frozen:
        module = get_module(unwrap(network), parent_path(name))
        holder = module.get_submodule(BASE) if is_of_peft(module) else module
        found[name] = holder.get_parameter(name.rpartition(".")[2])
    return found


def adapter_parameters(network: nn.Module, adapters: Adapters) -> dict[str, Parameter]:
    """Return the parameters that adapters have added, by name."""
    return {n: p for path in adapters.modules for n, p in _added_at(unwrap(network), path).items()}


def _added_at(network: nn.Module, path: str) -> dict[str, Parameter]:
    layer = get_module(network, path)
    return {f"{path}.{n}": p for n, p in layer.named_parameters() if not n.startswith(f"{BASE}.")}


def has_adapters(network: nn.Module) -> bool:
    """Whether any module is one of peft's."""
    return any(map(is_of_peft, network.modules()))


def _check_is(value: object, wanted: type, example: str) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"Expected {wanted.__name__}, but got {type(value).__name__}. Pass {example}.")


def _inject(network: nn.Module, adapters: Adapters) -> None:
    """Have peft replace the modules that are named, and no others.

    It sees the network as a part of another module: where a config says that a model is a mixture of experts, peft
    takes the names of projections for those of fused experts, and leaves dense ones of the same name as they are.
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
