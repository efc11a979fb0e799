"""The registry of importances for depth: by the names that `plan_depth` takes, or the caller's own callables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from prunerecover.importance.angular_distance import angular_distance
from prunerecover.importance.block_influence import block_influence
from prunerecover.importance.context import DepthContext
from prunerecover.importance.cross_entropy import cross_entropy
from prunerecover.importance.gate_gradient import gate_gradient
from prunerecover.importance.magnitude import magnitude
from prunerecover.importance.output_divergence import output_divergence
from prunerecover.importance.random_scores import random
from prunerecover.importance.taylor import taylor

Importance = Callable[[DepthContext], Mapping[str, float]]


@dataclass(frozen=True)
class RegisteredImportance:
    """An importance and what planning must know of it.

    Attributes:
        name: As plans and messages state it.
        compute: Returns the importance of every unit of a context; higher means keep.
        needs_loss: Whether it raises without a loss.
        comparable: Whether values compare across kinds of units, which a budget in a share of cost needs.
    """

    name: str
    compute: Importance
    needs_loss: bool = False
    comparable: bool = False

    def __call__(self, context: DepthContext) -> dict[str, float]:
        """Return the importance of every unit.

        Raises:
            ValueError: If one is missing, NaN or infinite.
            TypeError: If it returns no mapping of numbers.
        """
        found = self.compute(context)
        try:
            scores = {name: float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"Expected '{self.name}' to return {{unit name: number}}, but got {_told(found)}."
            ) from None
        check_unit_scores(scores, self.name, [unit.name for unit in context.units])
        return scores


IMPORTANCES = {
    entry.name: entry
    for entry in (
        RegisteredImportance("output_divergence", output_divergence, comparable=True),
        RegisteredImportance("gate_gradient", gate_gradient, needs_loss=True),
        RegisteredImportance("taylor", taylor, needs_loss=True),
        RegisteredImportance("cross_entropy", cross_entropy, needs_loss=True, comparable=True),
        RegisteredImportance("magnitude", magnitude),
        RegisteredImportance("angular_distance", angular_distance),
        RegisteredImportance("block_influence", block_influence),
        RegisteredImportance("random", random),
    )
}


def register_importance(
    name: str, compute: Importance, *, needs_loss: bool = False, comparable: bool = True
) -> RegisteredImportance:
    """Let `importance=name` mean a callable of your own, in `plan_depth`, `DepthPrune`, recipes and the command line.

    Args:
        name: That it goes by from now on.
        compute: `(context) -> {unit name: importance}`, higher means keep.
        needs_loss: Whether it reads `context.loss`.
        comparable: Whether its values compare across kinds of units, which a budget in a share of cost needs.

    Raises:
        ValueError: If another importance has the name.
        TypeError: If the name is no word, or nothing can be called.
    """
    check_new("importance", name, compute)
    if name in IMPORTANCES and IMPORTANCES[name].compute is not compute:
        raise ValueError(f"Expected a name that no importance has, but '{name}' is taken. Choose another.")
    IMPORTANCES[name] = RegisteredImportance(name, compute, needs_loss, comparable)
    return IMPORTANCES[name]


def importance_of(importance: str | Importance) -> RegisteredImportance:
    """Return the entry of a name, or one for a callable, whose values are taken to compare across kinds.

    Raises:
        ValueError: If there is no importance of the name.
        TypeError: If it is neither a name nor a callable.
    """
    if isinstance(importance, RegisteredImportance):
        return importance
    if isinstance(importance, str):
        if importance not in IMPORTANCES:
            raise ValueError(
                f"Expected argument importance to be one of {', '.join(IMPORTANCES)}, or a callable (context) -> "
                f"{{unit name: importance}}, but got '{importance}'."
            )
        return IMPORTANCES[importance]
    if not callable(importance) or isinstance(importance, type):
        raise TypeError(
            "Expected argument importance to be a name or a callable (context) -> {unit name: importance}, but got "
            f"{kind_of_thing(importance)}."
        )
    return RegisteredImportance(name_of(importance), importance, comparable=True)


def name_of(score: object) -> str:
    """Return the name by which plans record a callable: its own, or that of its class.

    Arguments that are bound to it are not part of the name, nor can lambdas be told apart by theirs.

    >>> name_of(magnitude), name_of("magnitude"), name_of(partial(magnitude))
    ('magnitude', 'magnitude', 'magnitude')
    """
    while isinstance(score, partial):
        score = score.func
    return score if isinstance(score, str) else str(getattr(score, "__name__", type(score).__name__))


def check_new(what: str, name: object, compute: object) -> None:
    """Raise TypeError unless an entry of a registry has a name, and something to call.

    Args:
        what: It is, for the message.
        name: That it is to go by.
        compute: What the name is to mean.
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


def _told(found: object) -> str:
    if not isinstance(found, Mapping):
        return type(found).__name__
    return ", ".join(f"{name}: {type(value).__name__}" for name, value in list(found.items())[:3])


def check_unit_scores(scores: Mapping[str, float], importance: str, units: Collection[str] = ()) -> None:
    """Raise ValueError if a unit has no importance, or one that is NaN or infinite: sorting would choose at random.

    Args:
        scores: Importance by unit name.
        importance: Name of what returned them, for the message.
        units: Names that must be among them.

    >>> check_unit_scores({"blocks.0": 1.0}, "magnitude")
    """
    missing = [name for name in units if name not in scores]
    if missing:
        raise ValueError(
            f"Expected '{importance}' to return an importance for each of the {len(units)} units, but "
            f"{', '.join(missing[:3])} {'has' if len(missing) == 1 else 'have'} none. Return {{unit.name: importance}} "
            "for all of context.units."
        )
    wrong = {name: value for name, value in scores.items() if not math.isfinite(value)}
    if wrong:
        found = ", ".join(f"{name}: {value}" for name, value in list(wrong.items())[:3])
        raise ValueError(
            f"Expected finite importances from '{importance}', but {len(wrong)} of {len(scores)} are not ({found}). "
            "Check the model's output on the calibration batches for NaN, and compute it in float32."
        )
