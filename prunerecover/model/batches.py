"""The single form of calibration batches, made of all forms that users pass.

A batch may be a tensor; a tuple or list with the input first (the further elements are labels and are not passed on); a
mapping of keyword arguments (as from tokenizers); a mapping with images as "img" (as from ultralytics' loaders); or
`ModelInputs`, the form captured from a forward call. The input of a detector is a list: an image `(C, H, W)`, or a
mapping, per sample. Patches of all images in a single tensor, with the grid of each image (as from the processors of
Qwen2.5-VL), belong to the samples with the tokens of the images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Batches = Iterable[Any]
LABELS = ("labels", "label")  # keys in mappings
IMAGES = "img"  # key in batches of ultralytics' loaders, beside boxes and classes
# Tensors with the rows of all images, by the keys of the images' sizes `(images, 3)`; and kinds of tokens `(N, T)`.
PACKED, KINDS = {"image_grid_thw": "pixel_values", "video_grid_thw": "pixel_values_videos"}, "mm_token_type_ids"


@dataclass(frozen=True)
class ModelInputs:
    """The arguments of a forward call; tensors are batched along dimension 0, lists of images along the list."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """Size of dimension 0 of the first tensor by samples; for a list of images, the length of the list."""
        rows = {name for sizes, name in PACKED.items() if sizes in self.kwargs}
        named = sorted((name for name in self.kwargs if name not in rows), key=PACKED.__contains__)  # sizes last
        for value in (*self.args, *(self.kwargs[name] for name in named)):
            if _one_per_sample(value):
                return len(value)
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor) and leaf.ndim:
                    return int(leaf.shape[0])
        raise TypeError("Expected a batch with at least one tensor of one or more dimensions, but found none.")

    def select(self, index: Tensor) -> ModelInputs:
        """Return the samples in `index`, a 1-D integer tensor."""
        n = self.n_samples

        def of(leaf: Any) -> Any:
            return leaf[index.to(leaf.device)] if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == n else leaf

        def chosen(value: Any) -> Any:
            if _one_per_sample(value) and len(value) == n:
                return [value[number] for number in index.tolist()]
            return tree_map(of, value)

        packed = _by_sample(self.kwargs, n)
        rows = {name: torch.cat([parts[number] for number in index.tolist()]) for name, parts in packed.items()}
        kwargs = {name: rows[name] if name in rows else chosen(value) for name, value in self.kwargs.items()}
        absent = {name for name, value in rows.items() if not len(value)}  # texts without images
        return ModelInputs(
            tuple(map(chosen, self.args)), {name: value for name, value in kwargs.items() if name not in absent}
        )

    def undivided(self) -> str:
        """Return a message on tensors with rows besides samples, such as patches of all images; empty without any."""
        n, divided = self.n_samples, _by_sample(self.kwargs, self.n_samples)
        tensors = {name: value for name, value in self.kwargs.items() if isinstance(value, Tensor) and value.ndim}
        rows = {name: len(value) for name, value in tensors.items() if name not in divided}
        found = ", ".join(f"'{name}'" for name, length in rows.items() if length not in (1, n))
        return found and f" Rows of {found} are no samples: pass batches of one sample each, with its own rows."

    def to(self, device: torch.device) -> ModelInputs:
        """Move every tensor to `device`."""
        args, kwargs = on_device((self.args, self.kwargs), device)
        return ModelInputs(args, kwargs)


def listed(batches: Batches) -> list[Any]:
    """Return all batches.

    Raises:
        TypeError: If the argument is no iterable of batches, or a single batch.
    """
    if isinstance(batches, Tensor | Mapping | ModelInputs):
        raise TypeError(
            f"Expected argument batches to be an iterable of batches, but got one {type(batches).__name__}. "
            "Pass batches=[batch]."
        )
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"Expected argument batches to be an iterable of batches, such as a DataLoader or a list, but got "
            f"{type(batches).__name__}. Pass the loader of your data."
        )
    return list(batches)


def as_inputs(batch: Any) -> ModelInputs:
    """Turn a batch of any supported form into the arguments of a forward call.

    >>> as_inputs((torch.zeros(4, 3), torch.zeros(4))).n_samples
    4

    Raises:
        TypeError: If the batch has another form.
    """
    if isinstance(batch, ModelInputs):
        return batch
    if isinstance(batch, Tensor):
        return ModelInputs((batch,))
    if isinstance(batch, Mapping):
        images = batch.get(IMAGES)
        if isinstance(images, Tensor) and images.ndim == 4:
            return ModelInputs((images if images.is_floating_point() else images.float() / 255,))
        return ModelInputs(kwargs=dict(batch))
    if isinstance(batch, tuple | list) and batch and _one_per_sample(batch[0]):
        return ModelInputs((batch[0],))
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor | Mapping | ModelInputs):
        return as_inputs(batch[0])
    raise TypeError(
        "Expected each batch to be a tensor, a tuple whose first element is the input, or a mapping of keyword "
        f"arguments, but got {type(batch).__name__}. Convert it in your loader or pass a generator that does."
    )


def _one_per_sample(value: Any) -> bool:
    """Whether a value is a list of images or of mappings, such as the inputs and targets of detectors."""
    if not isinstance(value, tuple | list) or not value:
        return False
    images = all(isinstance(entry, Tensor) and entry.ndim == 3 for entry in value)
    return images or all(isinstance(entry, Mapping) for entry in value)


def _by_sample(kwargs: dict[str, Any], n: int) -> dict[str, tuple[Tensor, ...]]:
    """Return the rows and sizes of images in parts, a part per sample; empty if the images of a sample are unknown."""
    found: dict[str, tuple[Tensor, ...]] = {}
    for kind, (name, rows) in enumerate(PACKED.items(), 1):
        sizes, values, kinds = (kwargs.get(key) for key in (name, rows, KINDS))
        if not isinstance(sizes, Tensor) or not isinstance(values, Tensor) or sizes.is_meta:
            continue
        tokens = (kinds == kind).sum(1).tolist() if isinstance(kinds, Tensor) and not kinds.is_meta else []
        lengths = sizes.prod(-1).tolist()
        images = _images_by_sample(lengths, tokens, n)
        if images and sum(lengths) == len(values):
            found[name] = torch.split(sizes, images)
            found[rows] = torch.split(values, [int(part.prod(-1).sum()) for part in found[name]])
    return found


def _images_by_sample(lengths: list[int], tokens: list[int], n: int) -> list[int]:
    """Return the number of images of each sample; empty if unknown.

    Args:
        lengths: Number of rows of each image; an image has tokens in proportion.
        tokens: Number of tokens of images in each sample; empty if unknown.
        n: Number of samples.
    """
    if not tokens:
        return [len(lengths)] if n == 1 else [1] * n if len(lengths) == n else []
    ends = {end: number for number, end in enumerate(accumulate(lengths, initial=0))}
    last = [ends.get(so_far * sum(lengths) // max(1, sum(tokens)), -1) for so_far in accumulate(tokens, initial=0)]
    if -1 in last or last[-1] != len(lengths):
        return []
    return [end - begin for begin, end in pairwise(last)]


def on_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a batch of any form; tensors from inference mode are copied, for the flow of gradients."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return (leaf.clone() if leaf.is_inference() else leaf).to(device)

    return tree_map(move, batch)


def call(model: nn.Module, inputs: ModelInputs) -> Any:
    """Run the model on a batch."""
    return model(*inputs.args, **inputs.kwargs)


def logits_of(output: Any) -> Tensor:
    """Return the judged tensor of a model's output: logits if there are any, else the first tensor.

    Raises:
        TypeError: If the output holds no floating-point tensor.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        for key in ("logits", "last_hidden_state"):
            if isinstance(output.get(key), Tensor):
                return output[key]  # type: ignore[no-any-return]
    for leaf in tree_leaves(output if not isinstance(output, Mapping) else dict(output)):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim:
            return leaf
    raise TypeError(f"Expected the model's output to hold a floating-point tensor, but got {type(output).__name__}.")


def predictions_of(output: Any) -> Tensor:
    """Return the tensor of `logits_of`, or the mean over heads for a model with a tensor per head (distilled DeiT).

    Raises:
        TypeError: If the output holds no floating-point tensor.
    """
    if isinstance(output, tuple | list) and output and all(isinstance(t, Tensor) for t in output):
        same = [t for t in output if (t.shape, t.dtype) == (output[0].shape, output[0].dtype)]
        if same[0].is_floating_point():  # integers are numbers of classes
            return torch.stack(same).mean(0)
    return logits_of(output)


def holds_hidden_states(network: nn.Module, output: Any) -> bool:
    """Whether an output is hidden states without logits: timm's without a head, transformers' base models."""
    if isinstance(output, Mapping):
        return output.get("logits") is None and output.get("last_hidden_state") is not None
    return isinstance(output, Tensor) and getattr(network, "num_classes", None) == 0


def is_padding(inputs: ModelInputs, tokens: Tensor) -> Tensor:
    """Return the padded among `tokens`, `(N T,)`, `(N, T)` or `(T, N)`, by `attention_mask`; none without a mask."""
    mask = inputs.kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.numel() == tokens.numel():
        mask = mask.t() if tokens.shape == mask.t().shape != mask.shape else mask
        return (mask == 0).reshape(tokens.shape).to(tokens.device)
    return torch.zeros_like(tokens, dtype=torch.bool)


def without_padding(output: Tensor, inputs: ModelInputs) -> Tensor:
    """Return `(N, T, V)` outputs without padded positions as `(tokens, V)`; outputs of other shapes unchanged."""
    if output.ndim != 3:
        return output
    padding = is_padding(inputs, output[..., 0])
    return output[~padding] if padding.any() else output


def of_few_samples(batches: Sequence[ModelInputs], most: int) -> list[ModelInputs]:
    """Return the same samples in batches of at most `most`, for several steps per epoch."""
    return [batch.select(chosen) for batch in batches for chosen in torch.split(torch.arange(batch.n_samples), most)]


def split_labels(batch: Any) -> tuple[Any, Tensor]:
    """Separate the model's inputs, a batch without labels, from the labels.

    Raises:
        TypeError: If the batch holds no labels.
    """
    if isinstance(batch, Mapping):
        key = next((key for key in LABELS if isinstance(batch.get(key), Tensor)), None)
        if key is not None:
            return {k: v for k, v in batch.items() if k not in LABELS}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) > 1 and isinstance(batch[1], Tensor):
        return batch[:1], batch[1]
    raise TypeError(
        f"Expected labelled batches, tuples (input, labels) or mappings with 'labels', but got {type(batch).__name__}. "
        "Leave `batches` out to compare costs alone."
    )


def without_labels(batch: Any, model: nn.Module | None = None) -> Any:
    """Return the model's inputs, for a batch with or without labels.

    Args:
        batch: Batch in any form of `as_inputs`.
        model: Called model; an encoder-decoder of transformers keeps labels, the source of the decoder's inputs.
    """
    in_two_parts = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if in_two_parts and isinstance(batch, Mapping) and not any(n.startswith("decoder_input") for n in batch):
        return batch
    try:
        return split_labels(batch)[0]
    except TypeError:
        return batch


def with_samples(batches: Batches) -> list[Any]:
    """Return all batches as a list; raise ValueError without batches, or for a batch without samples."""
    batches = list(batches)
    if not batches:
        raise ValueError("Expected at least one calibration batch, but got none. Was a generator consumed before?")
    if not all(as_inputs(without_labels(batch)).n_samples for batch in batches):
        raise ValueError("Expected samples in every calibration batch, but one has none. Leave it out.")
    return batches
