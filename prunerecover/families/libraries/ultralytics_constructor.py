"""Constructors of ultralytics models: the class name, and the YAML kept by the model.

ultralytics is imported only for a model of the library. ultralytics evaluates words of a YAML as code, so the names are
checked first: classes of layers of ultralytics or torch.nn, and activations of torch.nn without code. A model opened
from a file of weights works in place everywhere; the constructor records the mode, which no YAML holds. Not covered:
layers that fetch weights, and fused networks.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

TASKS, LAYERS = "ultralytics.nn.tasks", "ultralytics.nn.modules."
FETCHING = ("TorchVision",)
LARGEST = 2**13


def ultralytics_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return the call that builds an ultralytics model from a YAML.

    Raises:
        ValueError: If ultralytics is not installed, or the data names anything but a model and layers.
    """
    name, yaml = constructor["ultralytics"], constructor.get("yaml") or {}
    try:
        from ultralytics.nn import tasks
    except ImportError as error:
        raise ValueError(
            f"Expected ultralytics to be installed, to build its {name}, but {error}. Install it, or build the dense "
            "model yourself and pass it: load_pruned(path, model)."
        ) from error
    cls = getattr(tasks, str(name), None)
    if not (isinstance(cls, type) and issubclass(cls, tasks.BaseModel) and cls.__module__ == TASKS):
        raise ValueError(f"Expected the name of a model class of {TASKS}, but got {name!r}. Is ultralytics too old?")
    _check_yaml(yaml, tasks)
    return lambda: _built(cls, yaml, constructor.get("names"), constructor.get("inplace"))


def ultralytics_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield constructors from the model's YAML: with the class's mode of in-place work, then with the model's."""
    if type(model).__module__ == TASKS and isinstance(vars(model).get("yaml"), dict):
        names = getattr(model, "names", None)
        try:
            yaml = json.loads(json.dumps({key: value for key, value in model.yaml.items() if key != "yaml_file"}))
        except TypeError:  # a user's YAML may hold any objects
            return
        made = {
            "ultralytics": type(model).__name__,
            "yaml": yaml,
            "names": [str(name) for name in names.values()] if isinstance(names, dict) else None,
        }
        yield made
        modes = {module.inplace for module in model.modules() if hasattr(module, "inplace")}
        if len(modes) == 1:  # as opened from a file of weights
            yield {**made, "inplace": bool(modes.pop())}


def _built(cls: Any, yaml: dict[str, Any], names: Any, inplace: Any) -> nn.Module:
    """Build a model.

    Args:
        cls: Class of the model.
        yaml: Layers of the model.
        names: Names of the classes to predict; None: numbers.
        inplace: Whether all modules work in place; None: the class's default.
    """
    model: nn.Module = cls(json.loads(json.dumps(yaml)), ch=yaml.get("channels", 3), verbose=False)
    if isinstance(names, list):
        model.names = dict(enumerate(map(str, names)))  # type: ignore[assignment]
    if isinstance(inplace, bool):
        model = copy.deepcopy(model)  # an activation shared by layers belongs to their class, and to other models
        for module in model.modules():
            if hasattr(module, "inplace"):
                module.inplace = inplace  # type: ignore[assignment]
    return model


def _check_yaml(yaml: Any, tasks: Any) -> None:
    """Raise ValueError if a YAML names anything but layers: ultralytics calls every name in a YAML."""
    rows = [*yaml.get("backbone", ()), *yaml.get("head", ())] if isinstance(yaml, dict) else []
    odd = [str(row)[:60] for row in rows if not (isinstance(row, list) and len(row) == 4 and _is_layer(row[2], tasks))]
    if not rows or odd:
        raise ValueError(
            f"Expected the YAML of a network of ultralytics, but got {'; '.join(odd[:3]) or 'no layers'} in it. Was "
            "the plan edited? If not, build the dense model yourself and pass it: load_pruned(path, model)."
        )
    _check_numbers(rows)
    activation = yaml.get("activation")
    if activation and not _is_activation(activation):
        raise ValueError(
            f"Expected an activation of torch.nn, such as 'nn.SiLU()', in the YAML, but got {str(activation)[:60]!r}. "
            "Build the dense model yourself and pass it: load_pruned(path, model)."
        )


def _check_numbers(data: Any) -> None:
    """Refuse widths and repeats that would fill the memory during construction."""
    if isinstance(data, list):
        for value in data:
            _check_numbers(value)
    elif isinstance(data, int) and data > LARGEST:
        raise ValueError(
            f"Expected a YAML with widths and repeats up to {LARGEST}, but got {data}. Was the plan edited? If not, "
            "build the dense model yourself and pass it: load_pruned(path, model)."
        )


def _is_layer(name: Any, tasks: Any) -> bool:
    own = not str(name).startswith("nn.")
    found = getattr(tasks, str(name), None) if own else getattr(nn, str(name)[3:], None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        return False
    return not own or (found.__module__.startswith(LAYERS) and name not in FETCHING)


def _is_activation(text: Any) -> bool:
    """Whether a text is a call of a class of torch.nn with plain numbers and words."""
    try:
        call = ast.parse(str(text), mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    found = getattr(nn, call.func.attr, None)
    return (
        ast.unparse(call.func.value) in ("nn", "torch.nn")
        and isinstance(found, type)
        and issubclass(found, nn.Module)
        and all(isinstance(value, ast.Constant) for value in values)
    )
