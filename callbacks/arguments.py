"""Checks of arguments that several callbacks take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl


def check_one(given: Mapping[str, Any], example: str) -> None:
    """Raise ValueError unless exactly one of several arguments is given.

    Args:
        given: Arguments by name, None where one is not given.
        example: A call that is right.
    """
    said = [name for name, value in given.items() if value is not None]
    if len(said) != 1:
        *first, last = given
        way_out = " Set all but one to None (null in a recipe)." if said else ""
        raise ValueError(
            f"Expected exactly one of {', '.join(first)} and {last}, e.g. {example}, but got "
            f"{' and '.join(said) or 'none'}.{way_out}"
        )


def check_alone(callback: type[pl.Callback], planning: Mapping[str, Any]) -> None:
    """Raise ValueError if something is said beside a plan that only deciding here would read.

    Args:
        callback: What it is said to.
        planning: The arguments that deciding reads, by name.
    """
    defaults = inspect.signature(callback).parameters
    said = [name for name, value in planning.items() if value != defaults[name].default]
    if said:
        raise ValueError(
            f"Expected no {', '.join(said)} beside a plan, which says already what goes, but got "
            f"{', '.join(f'{name}={planning[name]!r}' for name in said)}. Pass them to what makes the plan."
        )


def check_distillation(weight: float, temperature: float, name: str) -> None:
    """Raise TypeError unless these are numbers, and ValueError unless a teacher can be weighed and softened by them.

    Args:
        weight: Of the teacher, 0 to 1.
        temperature: Divides the logits.
        name: Of the argument with the weight.
    """
    for argument, value in ((name, weight), ("temperature", temperature)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"Expected argument {argument} to be a number, but got {value!r}.")
    if not 0 <= weight <= 1:
        raise ValueError(f"Expected argument {name} to be between 0 and 1, but got {weight}.")
    if temperature <= 0:
        raise ValueError(f"Expected argument temperature to be positive, but got {temperature}.")


def check_whole(name: str, value: int, least: int) -> None:
    """Raise TypeError unless an argument is a whole number, and ValueError if it is below the least that makes sense.

    Args:
        name: Of the argument.
        value: What was given.
        least: That is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Expected argument {name} to be a whole number, but got {value!r}.")
    if value < least:
        raise ValueError(f"Expected argument {name} to be at least {least}, but got {value}.")
