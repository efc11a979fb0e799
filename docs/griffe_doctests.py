"""Extensions of griffe for mkdocs.yml: examples are shown as code, and collected arguments one by one."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class DoctestsAsCode(griffe.Extension):
    """Puts fences around doctests."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of each function, class and module as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)


class ArgumentsSpelledOut(griffe.Extension):
    """Shows what `spelled_out` makes of a class: every argument with its type, default and description."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take signature and docstring of a decorated class from where it is imported."""
        if not any("spelled_out" in str(decorator.value) for decorator in cls.decorators):
            return
        path = cls.path if cls.path.startswith("prunerecover.") else f"prunerecover.{cls.path}"
        made: Any = griffe.dynamic_import(path)
        if cls.docstring is not None:
            cls.docstring.value = inspect.getdoc(made) or ""
        if "__init__" not in cls.members:  # a dataclass
            cls["__init__"] = griffe.Function("__init__")
        cls["__init__"].parameters = griffe.Parameters(
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword),
            *(_shown(parameter) for parameter in inspect.signature(made).parameters.values()),
        )


def _shown(parameter: inspect.Parameter) -> griffe.Parameter:
    """Return a parameter as griffe has it, with the types by their own names."""
    annotation = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(parameter.annotation))
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    kind = griffe.ParameterKind.keyword_only if keyword else griffe.ParameterKind.positional_or_keyword
    return griffe.Parameter(parameter.name, annotation=annotation, default=default, kind=kind)
