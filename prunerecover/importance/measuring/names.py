"""Names of scores and rules, registered or the caller's callables."""

from __future__ import annotations

from functools import partial


def name_of(score: object) -> str:
    """Return the name of a callable in plans: its `__name__`, or the name of its class.

    Bound arguments are not part of the name, and all lambdas have the same name.

    >>> name_of(sorted), name_of("magnitude"), name_of(partial(sorted))
    ('sorted', 'magnitude', 'sorted')
    """
    while isinstance(score, partial):
        score = score.func
    return score if isinstance(score, str) else str(getattr(score, "__name__", type(score).__name__))


def check_new(what: str, name: object, compute: object) -> None:
    """Raise TypeError unless a new entry of a registry has a name and a callable.

    Args:
        what: Noun for the entry, for the message.
        name: Name of the entry.
        compute: Callable of the entry.
    """
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"Expected a word as the name of the {what}, but got {name!r}.")
    if not callable(compute) or isinstance(compute, type):
        raise TypeError(f"Expected a callable as the {what} '{name}', but got {kind_of_thing(compute)}.")


def kind_of_thing(thing: object) -> str:
    """Return the description of an invalid object for messages.

    >>> kind_of_thing(3), kind_of_thing(dict)
    ('int', 'the class dict. Pass dict(...)')
    """
    return (
        f"the class {thing.__name__}. Pass {thing.__name__}(...)" if isinstance(thing, type) else type(thing).__name__
    )
