"""Options of a recipe's callbacks by name: `--trainer.callbacks.DepthPrune.remove '{"attention": 1}'`.

LightningCLI reaches only the callback added last. Options by name become a list of callbacks right after their recipe:
the recipe's callbacks with changed values.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import yaml

PREFIX = "--trainer.callbacks."
CONFIG = ("--config", "-c")


def with_callback_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options of callbacks by name replaced by the whole list of callbacks.

    Args:
        arguments: Arguments of a command; recipes are given by path. A callback is named by its class, or by class and
            number among several, as in `DepthPrune.1.remove`.

    Raises:
        ValueError: If no recipe has the callback, or several match and no number is given.
    """
    kept, options = _split(arguments)
    if not options:
        return kept
    place, callbacks = _last_callbacks(kept)
    for option, value in options:
        _set(callbacks, option, value)
    return [*kept[:place], f"--trainer.callbacks={json.dumps(callbacks)}", *kept[place:]]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Separate options of callbacks by name, without prefix and with values, from the remaining arguments."""
    kept: list[str] = []
    options: list[tuple[str, Any]] = []
    left = list(arguments)
    while left:
        option, equals, value = left.pop(0).partition("=")
        name = option.removeprefix(PREFIX)
        if not option.startswith(PREFIX) or not name[:1].isupper() or "." not in name:
            kept.append(f"{option}{equals}{value}")
            continue
        if not equals:
            if not left or left[0].startswith("--"):
                raise ValueError(f"Expected a value after {option}, but got none.")
            value = left.pop(0)
        options.append((name, yaml.safe_load(value)))
    return kept, options


def _last_callbacks(arguments: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the index after the last recipe with callbacks, and a copy of the callbacks."""
    found: tuple[int, list[dict[str, Any]]] = (len(arguments), [])
    for index, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option not in CONFIG or (not equals and index + 1 == len(arguments)):
            continue
        place = index + 1 if equals else index + 2
        with open(value if equals else arguments[index + 1], encoding="utf-8") as file:
            recipe = yaml.safe_load(file)
        callbacks = ((recipe or {}).get("trainer") or {}).get("callbacks")
        if callbacks:
            listed = callbacks if isinstance(callbacks, list) else [callbacks]
            found = place, [copy.deepcopy(c) if isinstance(c, dict) else {"class_path": c} for c in listed]
    return found


def _set(callbacks: Sequence[dict[str, Any]], option: str, value: Any) -> None:
    name, *path = option.split(".")
    alike = [c for c in callbacks if str(c.get("class_path")).rpartition(".")[2] == name]
    which = int(path.pop(0)) if path[0].isdigit() else None
    path = path[1:] if path[:1] == ["init_args"] else path
    if not alike or not path or (which or 0) >= len(alike):
        names = ", ".join(str(c.get("class_path")).rpartition(".")[2] for c in callbacks) or "none"
        raise ValueError(
            f"Expected {PREFIX}NAME.ARGUMENT of a callback of the recipe ({names}), but got '{option}'. One that is "
            f"added on the command line takes its arguments right after it: --trainer.callbacks+=NAME {PREFIX}ARGUMENT."
        )
    if which is None and len(alike) > 1:
        raise ValueError(
            f"Expected one {name} in the recipe, but it has {len(alike)}. Say which: "
            f"{', '.join(f'{PREFIX}{name}.{number}.{path[0]}' for number in range(len(alike)))}."
        )
    entry = alike[which or 0]
    for part in ("init_args", *path[:-1]):
        if not isinstance(entry.get(part), dict):
            entry[part] = {}
        entry = entry[part]
    entry[path[-1]] = value
