"""Models of torchvision by name, with trained layers also beside a head for other classes."""

from __future__ import annotations

from typing import Any

from torch import nn

COUNTED = "num_batches_tracked"  # buffer of BatchNorm; frozen norms have none


def torchvision_model(name: str, pretrained: bool, head: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """Return a model of torchvision; layers of other shapes than the trained layers stay as initialised.

    Args:
        name: Name of a builder of torchvision.
        pretrained: Whether to load the pretrained weights of the name.
        head: Arguments of the builder that change the shapes of the head; empty keeps the head.
        options: Further arguments of the builder.

    Raises:
        ValueError: If the weights cannot be downloaded.
    """
    from torchvision.models import get_model

    model: nn.Module = get_model(name, **{"weights": None, "weights_backbone": None, **head, **options})
    if not pretrained:
        return model
    try:
        return with_trained_layers(model, get_model(name, weights="DEFAULT", **options))
    except OSError as error:  # includes all errors of urllib
        raise ValueError(
            f"Expected the weights of {name} to be there or reachable, but got: {error}. Without a network, put the "
            "file into the folder that `torch.hub.get_dir()` names, under checkpoints, or set pretrained=False; for a "
            "detector model_kwargs={'checkpoint_path': '/path'} names a file of weights."
        ) from error


def with_trained_layers(model: nn.Module, trained: nn.Module) -> nn.Module:
    """Move the layers of a trained model into a model; a head for other classes stays as initialised."""
    for path, layer in list(model.named_modules()):
        other = trained.get_submodule(path)
        if path and not any(True for _ in layer.children()) and _shapes(layer) == _shapes(other):
            model.set_submodule(path, other)
    return model


def _shapes(layer: nn.Module) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in layer.state_dict().items() if name != COUNTED}
