"""Constructors of torchvision models: the name for `torchvision.models.get_model`, and a few arguments.

Models of torchvision do not know their names. Every builder states a return class: the few names of the model's class
are built without memory, and names with the same tensors are candidates. The number of classes is read off the
dependent tensors, in heads of any kind. Detectors with pretrained weights have frozen norms in the backbone, made by
builders only with fetched weights: the norms are replaced afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from torch import nn

from prunerecover.families.libraries.empty_models import on_meta_if_possible
from prunerecover.families.libraries.timm_constructor import check_call

ARGUMENTS = frozenset(
    {"num_classes", "num_keypoints", "aux_loss", "aux_logits", "init_weights", "transform_input", "image_size"}
    | {"min_size", "max_size"}
    | {f"rpn_{which}_nms_top_n_{when}" for which in ("pre", "post") for when in ("train", "test")}
)
NO_WEIGHTS = ("weights", "weights_backbone")
PROBED = 2  # number of classes that shows the dependent tensors

Arguments = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


def torchvision_call(constructor: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return the call that builds a torchvision model, without weights.

    Raises:
        ValueError: If the name is no torchvision model, or an argument does more than shape the network.
    """
    import torchvision

    name, kwargs = constructor["torchvision"], dict(constructor.get("kwargs") or {})
    check_call(torchvision, name, name in torchvision.models.list_models(), kwargs, ARGUMENTS)
    return lambda: _built(name, kwargs, constructor.get("frozen_norms"))


def torchvision_candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the names of the model's class with equal tensors but for the number of classes."""
    if not type(model).__module__.startswith("torchvision."):
        return
    eps, own = _frozen_eps(model), _shapes(model)
    norms = {} if eps is None else {"frozen_norms": eps}
    for sizes in ({}, _image_sizes(model)):
        for name in _names_of(type(model)):
            kwargs = _arguments(model, name)
            classes = _classes(own, _probe(name, tuple(kwargs.items()), eps))
            if classes is not None:
                yield {"torchvision": name, "kwargs": {**kwargs, **classes, **sizes}, **norms}


def _built(name: str, kwargs: Mapping[str, Any], eps: float | None) -> nn.Module:
    """Build a model without weights for the network or the backbone; with an `eps`, the backbone has frozen norms."""
    from torchvision.models import get_model
    from torchvision.ops import FrozenBatchNorm2d

    model: Any = get_model(name, **{key: None for key in NO_WEIGHTS if key in _parameters(name)}, **kwargs)
    norms = [] if eps is None else [p for p, m in model.backbone.named_modules() if type(m) is nn.BatchNorm2d]
    for path in norms:
        new = FrozenBatchNorm2d(model.backbone.get_submodule(path).num_features, eps)
        model.backbone.set_submodule(path, new)
    return model  # type: ignore[no-any-return]


def _frozen_eps(model: nn.Module) -> float | None:
    from torchvision.ops import FrozenBatchNorm2d

    return next((module.eps for module in model.modules() if isinstance(module, FrozenBatchNorm2d)), None)


def _names_of(cls: type) -> tuple[str, ...]:
    """Return the names in the registry with builders of a class."""
    from torchvision.models import list_models

    return tuple(name for name in list_models() if cls in _returned(name))


@lru_cache(maxsize=512)
def _returned(name: str) -> tuple[Any, ...]:
    from torchvision.models import get_model_builder

    try:
        hint = get_type_hints(get_model_builder(name)).get("return")
    except Exception:  # a user's builder may have any annotations
        return ()
    return (hint, *get_args(hint))


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    from torchvision.models import get_model_builder

    return inspect.signature(get_model_builder(name)).parameters


def _arguments(model: Any, name: str) -> Arguments:
    """Read off the model the builder's arguments but the number of classes and a detector's image sizes."""
    found: Arguments = {}
    if "aux_loss" in _parameters(name) and getattr(model, "aux_classifier", None) is not None:
        found["aux_loss"] = True
    if isinstance(getattr(model, "aux_logits", None), bool):
        found |= {"aux_logits": model.aux_logits, "init_weights": False, "transform_input": model.transform_input}
    if isinstance(getattr(model, "image_size", None), int):
        found["image_size"] = model.image_size
    if "num_keypoints" in _parameters(name):
        found["num_keypoints"] = model.roi_heads.keypoint_predictor.kps_score_lowres.out_channels
    for when, stage in {"train": "training", "test": "testing"}.items() if hasattr(model, "rpn") else ():
        found[f"rpn_pre_nms_top_n_{when}"] = model.rpn._pre_nms_top_n[stage]
        found[f"rpn_post_nms_top_n_{when}"] = model.rpn._post_nms_top_n[stage]
    return found


def _image_sizes(model: Any) -> Arguments:
    sizes = vars(getattr(model, "transform", model)).get("min_size", ())
    return {"min_size": sizes[0], "max_size": model.transform.max_size} if len(sizes) == 1 else {}


def _classes(own: Shapes, probe: Shapes | None) -> Arguments | None:
    """Return the only number of classes with these shapes; empty without a probe, None without a number."""
    if probe is None:  # the builder takes no number of classes
        return {}
    if probe.keys() != own.keys():
        return None
    pairs = [(own[key], probe[key]) for key in probe if own[key] != probe[key]]
    found = {shape[0] * PROBED // probed[0] if shape and probed else 0 for shape, probed in pairs} or {PROBED}
    return {"num_classes": found.pop()} if len(found) == 1 else None


@lru_cache(maxsize=512)
def _probe(name: str, kwargs: tuple[tuple[str, Any], ...], eps: float | None) -> Shapes | None:
    """Return the shapes of a model of `PROBED` classes; empty if the build fails, None without such an argument."""
    try:
        return _shapes(on_meta_if_possible(lambda: _built(name, {**dict(kwargs), "num_classes": PROBED}, eps)))
    except TypeError:
        return None
    except Exception:  # for example, images of no multiple of the patches; users' builders may raise anything
        return {}


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
