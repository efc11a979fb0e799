"""Warning of `save_pretrained` for transformers models that `from_pretrained` cannot build again.

`from_pretrained` builds the network of the config and fills missing weights with random values. A model changed by
surgery or adapters beyond its config warns when it is saved. The check replaces `save_pretrained` on the instance,
outside the state dict. The config is compared at the time of saving: a model without some whole blocks, or with all
layers narrowed alike, saves without a warning. Tied weights saved under another name do not count as missing. Not
covered: a larger module around the changed model, if only the model was passed to the surgery.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch import nn

from prunerecover.families.constructors import is_described_by_config
from prunerecover.families.transformers_layers import is_transformers_model
from prunerecover.model.checks import warn_unless_finite
from prunerecover.model.paths import is_of_peft
from prunerecover.model.replacements import Replacement, SlopeBias

NAME = "save_pretrained"
Reason = Literal["surgery", "adapters"]


class CheckedSave:
    """`save_pretrained` of a model with a warning; copies and pickles of the model have a separate check.

    Args:
        model: Transformers model, held by a weak reference.
        reasons: Reasons for the check.
    """

    def __init__(self, model: nn.Module, reasons: frozenset[Reason]) -> None:
        self._model, self.reasons = weakref.ref(model), reasons

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Warn if the saved model could not be built again or holds NaN, then save the model.

        Raises:
            RuntimeError: If the model was garbage-collected, as in `load_pruned(path).save_pretrained(folder)`.
        """
        model: Any = self._model()
        if model is None:
            raise RuntimeError(
                "Expected a pruned model that is kept while it is saved, but nothing holds it any more. Give it a name "
                "first: model = load_pruned(path), then model.save_pretrained(folder)."
            )
        if not is_described_by_config(model):
            warnings.warn(_message(model), stacklevel=2)
        warn_unless_finite(model, args[0] if args else kwargs.get("save_directory", "the folder"))
        return type(model).save_pretrained(model, *args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Refer to the copied model in a copy, and to the unpickled model after unpickling."""
        return CheckedSave, (self._model(), self.reasons)


def check_saving(network: nn.Module, reason: Reason) -> None:
    """Let every transformers model in a network warn on saving if `from_pretrained` could not build the model again."""
    for model, check in _checks(network):
        vars(model)[NAME] = CheckedSave(model, (check.reasons if check else frozenset()) | {reason})
        if check is None:
            model.register_load_state_dict_post_hook(find_tied)  # type: ignore[no-untyped-call]


def uncheck_saving(network: nn.Module, reason: Reason) -> None:
    """Revert `check_saving`, unless another reason remains."""
    for model, check in _checks(network):
        if check is None:
            continue
        if left := check.reasons - {reason}:
            vars(model)[NAME] = CheckedSave(model, left)
        else:
            del vars(model)[NAME]
            hooks = model._load_state_dict_post_hooks
            for key in [key for key, hook in hooks.items() if hook is find_tied]:
                del hooks[key]


def find_tied(model: nn.Module, keys: Any) -> None:
    """Remove tied tensors loaded under another name from the missing keys: transformers saves tied tensors once.

    Its Trainer warns of missing keys when reading its checkpoints (`load_best_model_at_end`), pruned or not.

    Args:
        model: Network after `load_state_dict`.
        keys: Result of `load_state_dict` with the missing names, changed in place.
    """
    named, missing = dict(model.named_parameters(remove_duplicate=False)), set(keys.missing_keys)
    loaded = {id(tensor) for name, tensor in named.items() if name not in missing}
    keys.missing_keys[:] = [name for name in keys.missing_keys if id(named.get(name)) not in loaded]


def _checks(network: nn.Module) -> Iterator[tuple[nn.Module, CheckedSave | None]]:
    """Yield transformers models with their checks; models with a foreign `save_pretrained` are left out."""
    for model in network.modules():
        check = vars(model).get(NAME)
        if is_transformers_model(model) and isinstance(check, CheckedSave | None):
            yield model, check


def _message(model: nn.Module) -> str:
    name = type(model).__name__
    said = f"from_pretrained will not make this {name} again from what save_pretrained writes: "
    if any(map(is_of_peft, model.modules())):
        return (
            f"{said}it holds low-rank adapters, and their weights and those under them would be lost. Save what "
            "load_pruned makes of the run's checkpoint or pruned/ folder, or merge the adapters first (merge_adapters)."
        )
    odd = (path for path, module in model.named_modules() if isinstance(module, Replacement | SlopeBias))
    first = next(odd, None)
    what = f"such as {first}" if first else "such as layers of different sizes"
    return (
        f"{said}its config does not describe what surgery left ({what}), and random weights would stand there. Use "
        "save_pruned(model, plan, folder) and load_pruned(folder)."
    )
