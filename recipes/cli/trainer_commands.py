"""Commands to run a recipe on a trainer: help beside the options, and arguments before parsing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRAINER_COMMANDS = {
    "fit": "train a recipe; its callbacks prune, recover and report",
    "validate": "evaluate on the validation split",
    "test": "evaluate on the test split, also from a pruned checkpoint (--ckpt_path)",
    "predict": "predict the test split",
    "plan": "choose the units to remove and write the plan; the model stays unchanged",
}
CALLBACK_HELP = """\
A callback of the recipe is addressed by its name: --trainer.callbacks.DepthPrune.remove '{"attention": 1}' or, of
two, --trainer.callbacks.DepthPrune.1.schedule 5. One more:
--trainer.callbacks+=LoRARecover --trainer.callbacks.rank 8"""


def with_values(arguments: Sequence[str], options: Sequence[str], value_of: Callable[[str], str]) -> list[str]:
    """Return the arguments with the values of some options replaced, also in the form `--option=value`.

    >>> with_values(["-c", "a", "--config=b", "--seed", "1"], ("--config", "-c"), str.upper)
    ['-c', 'A', '--config=B', '--seed', '1']

    Args:
        arguments: Arguments of a command.
        options: Options with values to replace.
        value_of: Function from the given value to the new value.
    """
    replaced: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if replaced and replaced[-1] in options and not argument.startswith("-"):
            replaced.append(value_of(argument))
        else:
            replaced.append(f"{option}={value_of(value)}" if equals and option in options else argument)
    return replaced
