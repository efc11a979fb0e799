"""Arguments of pruning callbacks: typed once, and shown everywhere with types, defaults and descriptions."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Unpack, get_type_hints

import lightning.pytorch as pl
import pytest
from jsonargparse import ArgumentParser

from prunerecover import DepthPrune, Prune, WidthPrune
from prunerecover.callbacks.arguments import SurgeryArguments
from prunerecover.callbacks.planning.joint import PruningArguments
from prunerecover.depth.arguments import DepthArguments, DepthConfig
from prunerecover.display.spelled_out import spelled_out
from prunerecover.planning.arguments import PruningConfig
from prunerecover.width.arguments import WidthArguments, WidthConfig

SETS = [(DepthPrune, DepthArguments, DepthConfig), (WidthPrune, WidthArguments, WidthConfig)]
SETS += [(Prune, PruningArguments, PruningConfig)]


@pytest.mark.parametrize(("callback", "typed", "config"), SETS)
def test_the_signature_has_every_argument_with_its_type_and_default(callback: type, typed: type, config: Any) -> None:
    parameters = inspect.signature(callback).parameters
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    assert get_type_hints(typed).keys() == fields.keys()
    for name, default in fields.items():
        assert parameters[name].default == default
    for name, hint in {**get_type_hints(typed), **get_type_hints(SurgeryArguments)}.items():
        assert parameters[name].annotation == hint
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in parameters.values()}


@pytest.mark.parametrize("callback", [DepthPrune, WidthPrune, Prune])
def test_help_of_the_command_line_has_every_argument_with_its_description(callback: type[pl.Callback]) -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(callback, "prune")
    shown = " ".join(parser.format_help().split())
    for name in inspect.signature(callback).parameters:
        assert f"--prune.{name}" in shown
        described = (inspect.getdoc(callback) or "").split(f"\n    {name}: ")[1]
        assert " ".join(described.split("\n    ")[0].split())[:40] in shown


def test_a_class_without_a_docstring_is_left_without_one() -> None:
    """As with python -OO."""

    @spelled_out(DepthConfig)
    class Bare:
        def __init__(self, **arguments: Unpack[DepthArguments]) -> None:
            self.arguments = arguments

    assert Bare.__doc__ is None
    assert "search" in inspect.signature(Bare).parameters
