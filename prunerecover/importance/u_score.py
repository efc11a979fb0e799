"""First importance of FAIR-Pruner (arXiv 2508.02291): units with an output independent of the class are redundant.

U is the largest 1-Wasserstein distance between the class-conditional outputs of a unit over all pairs of classes. A
unit with one number per sample has an exact distance. A unit with a vector per sample (a map of H x W, the tokens of a
neuron, tokens x head dimension of a head) has a sliced distance: all numbers of a sample, in order, form the vector,
and the distances along directions of length 1, the same for all units of a tap, are averaged. The vector of a routed
expert is the mean of the expert's weighted output over the tokens of a sample; with labels of tokens, there is a vector
per class in the sample (see `token_classes`).

Only projections are kept from batch to batch. Where the projections would need more than `PROJECTIONS` bytes, the taps
are seen in several passes over the batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prunerecover.importance.context import ClassLabels, WidthContext
from prunerecover.importance.measuring.activations import Consumer, TapCall
from prunerecover.importance.measuring.routed import Routed
from prunerecover.importance.measuring.token_classes import TOKEN_CLASSES, Observations, observations, with_few_classes
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.importance.measuring.wasserstein import class_separation
from prunerecover.importance.streaming import StreamedImportance
from prunerecover.model.batches import as_inputs, split_labels
from prunerecover.plan.groups import Group, Tap

MAP_DIRECTIONS = 128
TOKEN_DIRECTIONS = 64
PROJECTIONS = 2**31  # bytes


@StreamedImportance
def u_score(context: WidthContext) -> UScore:
    """Score units by the dependence of the output on the class. Low means redundant.

    Reads the context's groups (each with taps; the score is the largest over the taps of a group), `labels`,
    `directions` and `per_class`. Batches are tuples (input, labels, ...), mappings with `labels` or `label`, or objects
    that `labels` can read. The model runs in evaluation mode.

    Returns:
        `(size,)` distances by group name, in the units of the activations.

    Raises:
        ValueError: If a group has no tap, a batch has no labels, there are fewer than two classes, labels are not one
            integer per sample or a unit's number of positions differs between batches.
    """
    return UScore(context)


class UScore:
    """U-Score under way: a consumer per pass over the batches, a single pass if all projections fit into memory.

    Attributes:
        passes: Consumers of the batches.
    """

    def __init__(self, context: WidthContext) -> None:
        self.groups = context.require_groups("u_score")
        for group in self.groups:
            if not group.taps:
                raise ValueError(
                    f"Expected a tap where the units of '{group.name}' are seen, but the group has none. "
                    "Leave it out, or score it by weights ('magnitude', 'r_score')."
                )
        labels = context.labels or labels_in
        if any(tap.of == "routing" for group in self.groups for tap in group.taps):
            labels = with_few_classes(labels, context.batches)
        samples = sum(as_inputs(batch).n_samples for batch in context.batches)
        self.passes = [
            Projections(part, labels, context.directions, context.seed, context.per_class)
            for part in _parts(self.groups, samples, context.directions)
        ]

    def scores(self) -> Scores:
        """Return the largest distance of each unit over the taps of its group."""
        scores = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in self.groups}
        for consumer in self.passes:
            for tap_call, distances in consumer.separations():
                scores[tap_call.group] = torch.maximum(scores[tap_call.group], distances)
        return scores


class Projections(Consumer):
    """Projections of the outputs of units on directions, and the classes of the samples."""

    def __init__(
        self,
        watched: Sequence[tuple[str, Tap]],
        labels: ClassLabels,
        directions: int | None,
        seed: int,
        per_class: int | None,
    ) -> None:
        self.watched = set(watched)
        self.by_token = all(tap.of == "routing" for _, tap in watched)
        self.labels_of = labels
        self.directions, self.seed, self.per_class = directions, seed, per_class
        self.seen = Observations(torch.empty(0))  # observations of the current batch
        self.used: Tensor | None = None  # indices of the observations in use; None: all
        self.classes: list[Tensor] = []
        self.counts: Counter[int] = Counter()
        self.values: dict[TapCall, list[Tensor]] = {}
        self.bases: dict[tuple[int, int], Tensor] = {}
        self.entries: dict[TapCall, int] = {}  # numbers per unit and sample

    def watches(self, group: Group, tap: Tap) -> bool:
        """Whether a tap belongs to the pass of these projections."""
        return (group.name, tap) in self.watched

    def begin(self, batch: Any, n: int) -> None:
        """Keep the classes of a batch, and the indices of the samples in use."""
        labels = self.labels_of(batch).detach().cpu()
        fits = labels.shape == (n,) or (self.by_token and labels.ndim == 2 and len(labels) == n)
        if not fits or labels.is_floating_point() or labels.is_complex():
            raise ValueError(
                f"Expected one integer class per sample, shape ({n},), but got shape {tuple(labels.shape)} of "
                f"{labels.dtype}. Pass labels=, a function batch -> classes."
            )
        self.seen, self.used = observations(labels), None
        classes = self.seen.classes
        if self.per_class is not None:
            self.used = torch.tensor([i for i, c in enumerate(classes.tolist()) if self._has_room(c)], dtype=torch.long)
            classes = classes[self.used]
        self.classes.append(classes)

    def see(self, tap_call: TapCall, values: Tensor) -> None:
        """Project `(n, size, entries)` on the tap's directions."""
        if self.used is not None:
            values = values[self.used.to(values.device)]
        if values.dtype not in (torch.float32, torch.float64):
            values = values.float()
        entries = values.shape[2]
        if self.entries.setdefault(tap_call, entries) != entries:
            raise ValueError(
                f"Expected the same number of positions in every batch at '{tap_call.tap.module}', but got units of "
                f"{self.entries[tap_call]} and of {entries} numbers. Pad or resize the inputs to one size."
            )
        projected = values.double() if entries == 1 else values @ self._basis(tap_call.tap, entries).to(values)
        self.values.setdefault(tap_call, []).append(projected)

    def route(self, tap_call: TapCall, routed: Routed) -> None:
        """Average the weighted outputs of experts over the tokens of each observation, on the tap's directions."""
        part_of = routed.sample_of if self.seen.of_token is None else self.seen.of_token
        if part_of.shape != routed.padding.shape:
            raise ValueError(
                f"Expected labels for samples, or for each of the {routed.padding.numel()} tokens that reach "
                f"'{tap_call.tap.module}', but got {part_of.numel()}. Pass labels=, a function batch -> (N,) classes."
            )
        means = routed.means(part_of, len(self.seen.classes), self._basis(tap_call.tap, routed.width))
        self.values.setdefault(tap_call, []).append((means if self.used is None else means[self.used]).cpu())

    def separations(self) -> list[tuple[TapCall, Tensor]]:
        """Return, per call of a tap, the largest distances between classes, `(size,)`."""
        labels = torch.cat(self.classes)
        return [(tap_call, class_separation(torch.cat(parts), labels)) for tap_call, parts in self.values.items()]

    def _has_room(self, label: int) -> bool:
        self.counts[label] += 1
        return self.per_class is None or self.counts[label] <= self.per_class

    def _basis(self, tap: Tap, entries: int) -> Tensor:
        """Return `(entries, directions)`, columns of length 1, the same for every tap of equal sizes."""
        number = self.directions or _default_directions(tap)
        if (entries, number) not in self.bases:
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(number, entries, generator=generator)
            self.bases[entries, number] = (drawn / drawn.norm(dim=1, keepdim=True)).T
        return self.bases[entries, number]


def labels_in(batch: Any) -> Tensor:
    """Return the second element of a tuple, or the entry `labels` or `label` of a mapping.

    Raises:
        ValueError: If the batch has no labels.
    """
    try:
        return split_labels(batch)[1]
    except TypeError as error:
        raise ValueError(
            "Expected labelled batches for the U-Score, tuples (input, labels) or mappings with 'labels', but got "
            f"{type(batch).__name__} without. Pass labels=, a function batch -> classes."
        ) from error


def _parts(groups: Sequence[Group], samples: int, directions: int | None) -> list[list[tuple[str, Tap]]]:
    """Divide the taps among passes, each with projections of at most `PROJECTIONS` bytes."""
    parts: list[list[tuple[str, Tap]]] = [[]]
    size = 0
    for group in groups:
        for tap in group.taps:
            seen = samples * (TOKEN_CLASSES if tap.of == "routing" else 1)
            needed = 4 * group.size * seen * (directions or _default_directions(tap))
            if parts[-1] and size + needed > PROJECTIONS:
                parts.append([])
                size = 0
            parts[-1].append((group.name, tap))
            size += needed
    return parts


def _default_directions(tap: Tap) -> int:
    return MAP_DIRECTIONS if tap.dim == 1 else TOKEN_DIRECTIONS
