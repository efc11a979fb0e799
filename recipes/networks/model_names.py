"""Names as a user writes them: paths with variables, models from timm's registry, the hub or a local folder.

A timm model has a name of three forms, everywhere in the recipes: a timm name (`deit_tiny_patch16_224`), a folder with
timm's `config.json` and weights (`local-dir:/path`), or a hub id (`timm/deit_tiny_patch16_224.fb_in1k`, with or without
timm's `hf-hub:` prefix). A language model has a folder as saved by transformers, or a hub id. Environment variables and
`~` are expanded when the name is used, never when stored, so that a checkpoint's hyperparameters stay valid on another
machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_UNSET = re.compile(r"\$(\w+|\{\w+\})")


def expand(path: str) -> str:
    """Return `path` with environment variables and `~` replaced.

    Raises:
        ValueError: If the path uses an unset variable.
    """
    expanded = os.path.expandvars(path)
    unset = _UNSET.search(expanded)
    if unset:
        name = unset.group(1).strip("{}")
        raise ValueError(
            f"Expected the environment variable {name} to be set, because {path!r} uses it, but it is not. "
            f"Set it (`export {name}=/path`) or override the path on the command line."
        )
    return os.path.expanduser(expanded)


def timm_name(name: str) -> str:
    """Return `name` in the form for `timm.create_model`: hub ids get the `hf-hub:` prefix.

    Names of `cifar_resnet` are registered with timm on first use.

    >>> timm_name("timm/vit_tiny_patch16_224.augreg_in21k")
    'hf-hub:timm/vit_tiny_patch16_224.augreg_in21k'

    Raises:
        ValueError: If a `local-dir:` folder does not exist or has no `config.json`.
    """
    if name.startswith("cifar_resnet"):
        from prunerecover.recipes.networks import cifar_resnet  # noqa: F401
    prefix, separator, path = name.partition(":")
    if separator and prefix == "local-dir":
        folder = Path(expand(path))
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"Expected a folder with timm's config.json and weights at {folder}, but there is none. "
                "Check the path after `local-dir:`, or name a timm model or a hub id."
            )
        return f"local-dir:{folder}"
    if "/" in name and not separator:
        return f"hf-hub:{name}"
    return name


def from_pretrained(
    opened: Callable[..., Any], name: str, argument: str = "model (--model.model)", **kwargs: Any
) -> Any:
    """Return the object of a `from_pretrained` of transformers for a folder or hub id.

    Args:
        opened: Function such as `AutoTokenizer.from_pretrained`.
        name: Name as a user writes it: variables and `~` are expanded.
        argument: Name of the user's argument, for the message.
        kwargs: Further arguments of the function.

    Raises:
        ValueError: If a local path does not exist, the files cannot be opened, or the hub cannot be reached.
    """
    local = Path(expand(name))
    is_path = local.is_absolute() or name.startswith((".", "~", "$")) or name.count("/") > 1
    if is_path and not local.exists():
        raise ValueError(
            f"Expected a model or tokenizer as transformers saves it at {local}, but nothing is there. Check the path, "
            "or give a hub id."
        )
    try:
        return opened(str(local) if local.exists() else name, **kwargs)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected {name!r} to be a folder as transformers saves it, or a hub id that can be reached, but got: "
            f"{str(error).splitlines()[0]} Check the spelling and the network, and HF_TOKEN for gated models, or name "
            f"another as {argument}."
        ) from error


def preprocessing(name: str) -> dict[str, Any]:
    """Return the image size, mean, std, interpolation and crop of the training of the model `name`.

    Reads the model's configuration only, not its weights.

    Raises:
        ValueError: If timm does not know the model.
    """
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg, is_model, load_model_config_from_hf

    name = timm_name(name)
    if name.startswith("local-dir:"):
        stored = json.loads((Path(name.removeprefix("local-dir:")) / "config.json").read_text())
        cfg = stored.get("pretrained_cfg", stored)
    elif name.startswith("hf-hub:"):
        cfg = load_model_config_from_hf(name.removeprefix("hf-hub:"))[0]
    elif is_model(name):
        found = get_pretrained_cfg(name)
        cfg = found.to_dict() if found else {}
    else:
        raise ValueError(
            f"Expected the name of a timm model, but got {name!r}. "
            "List them with timm.list_models(), or use `local-dir:/path` or a hub id (timm/resnet18.a1_in1k)."
        )
    config: dict[str, Any] = resolve_data_config(pretrained_cfg=cfg)
    return config
