"""Signatures of classes with `**arguments: Unpack[...]`: each argument with its type, default and description.

Type checkers read the TypedDict. At run time `inspect.signature`, `help`, LightningCLI and the documentation see every
argument, as if written out. A dataclass has its inherited arguments in its signature, and gets their descriptions.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints, is_typeddict

Taking = TypeVar("Taking")
ARGS = re.compile(r"^Args:\n((?: {4}.*\n?)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {8}.*)*", re.MULTILINE)


def spelled_out(*sources: type) -> Callable[[type[Taking]], type[Taking]]:
    """Return a decorator for dataclasses, and classes whose `__init__` collects arguments in a TypedDict.

    All arguments become visible, with their descriptions.

    Args:
        sources: Classes with defaults and descriptions in signatures and docstrings, or TypedDicts with descriptions
            alone; for each argument, the first source counts.
    """

    def decorate(cls: type[Taking]) -> type[Taking]:
        if is_dataclass(cls):
            cls.__doc__ = _documented(cls, sources)
            return cls
        init: Callable[..., None] = cls.__init__
        signature = _spelled(init, sources)

        @functools.wraps(init)
        def spelled(self: Any, *args: Any, **arguments: Any) -> None:
            for name in arguments:
                if name not in signature.parameters:
                    raise TypeError(f"{cls.__name__}.__init__() got an unexpected keyword argument '{name}'")
            init(self, *args, **arguments)

        spelled.__annotations__ = {p.name: p.annotation for p in [*signature.parameters.values()][1:]}
        spelled.__signature__ = signature  # type: ignore[attr-defined]
        cls.__init__ = spelled  # type: ignore[method-assign]
        cls.__doc__ = _documented(cls, sources)
        return cls

    return decorate


def _spelled(init: Callable[..., None], sources: tuple[type, ...]) -> inspect.Signature:
    """Return the signature of a function with the keys of its TypedDict as keyword arguments."""
    hints = get_type_hints(init)
    own = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in inspect.signature(init).parameters.values()]
    (keys,) = get_args(own.pop().annotation)
    defaults: dict[str, Any] = {}
    for source in (source for source in reversed(sources) if not is_typeddict(source)):
        defaults |= {name: p.default for name, p in inspect.signature(source).parameters.items()}
    typed = get_type_hints(keys).items()
    kind = inspect.Parameter.KEYWORD_ONLY
    given = [inspect.Parameter(name, kind, default=defaults[name], annotation=hint) for name, hint in typed]
    return inspect.Signature([*own, *given], return_annotation=None)


def _documented(cls: type, sources: tuple[type, ...]) -> str | None:
    """Return the docstring of a class, with the descriptions of its sources."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    found = ARGS.search(doc)
    if found is None:  # python -OO
        return cls.__doc__
    told = _descriptions(doc)
    for source in reversed(sources):
        told = _descriptions(inspect.getdoc(source) or "") | told
    names = [name for name in inspect.signature(cls).parameters if name in told]
    return f"{doc[: found.start(1)]}{chr(10).join(told[name] for name in names)}\n{doc[found.end(1) :]}"


def _descriptions(doc: str) -> dict[str, str]:
    """Return the descriptions of arguments by name, with the same indentation."""
    found = ARGS.search(doc)
    return {entry[1]: entry[0] for entry in ENTRY.finditer(found[1])} if found else {}
