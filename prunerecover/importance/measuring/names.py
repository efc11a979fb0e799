"""Names of scores and rules: of registered ones, and of the caller's callables."""

from __future__ import annotations

from functools import partial


def name_of(score: object) -> str:
    """Return the name by which plans record a callable: its own, or that of its class.

    Arguments that are bound to it are not part of the name, nor can lambdas be told apart by theirs.

    >>> name_of(sorted), name_of("magnitude"), name_of(partial(sorted))
    ('sorted', 'magnitude', 'sorted')
    """
    while isinstance(score, partial):
        score = score.func
    return score if isinstance(score, str) else str(getattr(score, "__name__", type(score).__name__))


def check_new(what: str, name: object, compute: object) -> None:
    """Raise TypeError unless an entry of a registry has a name, and something to call.

    Args:
        what: Noun for the entry, for the message.
        name: Name of the entry.
        compute: Callable of that name.
    """
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"Expected a word as the name of the {what}, but got {name!r}.")
    if not callable(compute) or isinstance(compute, type):
        raise TypeError(f"Expected a callable as the {what} '{name}', but got {kind_of_thing(compute)}.")


def kind_of_thing(thing: object) -> str:
    """Return what messages call something that cannot serve.

    >>> kind_of_thing(3), kind_of_thing(dict)
    ('int', 'the class dict. Pass dict(...)')
    """
    return (
        f"the class {thing.__name__}. Pass {thing.__name__}(...)" if isinstance(thing, type) else type(thing).__name__
    )
