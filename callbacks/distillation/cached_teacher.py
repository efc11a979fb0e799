"""On-disk cache of a teacher's answers, one per sample: in a fit of several epochs the teacher runs once.

The key of a sample is a hash of all arguments of the network for the sample, so shuffling does no harm, and augmented
samples count as new. Where a network ends in a linear layer with fewer inputs than outputs, as language models do, the
inputs of the layer are kept instead, and the layer runs again: a 49,152-way answer per token becomes 576 numbers, and
no rounding is added. In unchanged batches, answers have the bits of the teacher; in other batches they differ by
float32's rounding, as answers of the teacher to two batches do. Not covered: hidden states within the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name everyone uses)

from prunerecover.callbacks.distillation.sample_keys import fingerprint, sample_keys, text_lengths
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.callbacks.surgery.artifacts import artifact_folder
from prunerecover.families.transformers_layers import is_transformers_model
from prunerecover.files.atomic import atomic_file
from prunerecover.model.batches import ModelInputs, call, predictions_of
from prunerecover.model.evaluation import device_of
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module
from prunerecover.recovery.distillation import feature_loss

SEEN_AGAIN = 0.1  # the least share of repeated samples worth a cache
OPEN = 1024  # files at a time
SAME = 0.01  # relative squared error between equal answers, also in half precision


class CachedTeacher:
    """Frozen network that answers each sample once.

    Args:
        network: Network in evaluation mode.
        folder: Folder for the answers; other files in the folder are left alone.
        earlier: Folders of earlier fits continued by this fit.
    """

    def __init__(self, network: nn.Module, folder: Path, earlier: Iterable[Path] = ()) -> None:
        self.network = network
        self.folder: Path | None = folder / fingerprint(network)
        self._opened: Callable[[Path], Any] = lru_cache(OPEN)(partial(safe_open, framework="pt"))
        places = dict.fromkeys((self.folder, *(other / self.folder.name for other in earlier)))
        found = [path for place in places for path in sorted(place.glob("*.safetensors"))]
        self._places = {key: path for path in reversed(found) for key in _keys(self._opened(path))}
        self._asked = self._known = self._epochs = 0

    def __call__(self, inputs: ModelInputs) -> Tensor:
        """Return the teacher's predictions `(N, ...)`; the teacher runs on new samples, and the answers are kept.

        Raises:
            TypeError: If an argument of the network has no comparable value.
            ValueError: If the network does not give one answer per sample.
        """
        if self.folder is None:
            return predictions_of(call(self.network, inputs))
        keys = sample_keys(inputs)
        new = [number for number, key in enumerate(keys) if key not in self._places]
        self._asked, self._known = self._asked + len(keys), self._known + len(keys) - len(new)
        if len(new) == len(keys):
            return self._answer(inputs, keys)
        if new:
            self._answer(inputs.select(torch.tensor(new)), [keys[number] for number in new])
        return self._recalled(inputs, keys)

    def end_epoch(self) -> None:
        """Stop caching, with a warning, if hardly any sample was seen before, from the second epoch on."""
        self._epochs += bool(self._asked)
        if self.folder is not None and self._epochs > 1 and self._known < SEEN_AGAIN * self._asked:
            rank_zero_warn(
                f"DistillRecover(cache=True) has seen {self._known} of this epoch's {self._asked} samples before: "
                "the data are augmented, or new. The cache is given up, and the teacher runs as without it."
            )
            rmtree(self.folder, ignore_errors=True)
            self.folder, self._places = None, {}
        self._asked = self._known = 0

    def _answer(self, inputs: ModelInputs, keys: Sequence[str]) -> Tensor:
        """Run the teacher, and keep the answers in a file."""
        assert self.folder is not None
        answer, kept, layer = short_answer(self.network, inputs)
        if kept.ndim == 0 or len(kept) != len(keys) or inputs.undivided():
            raise ValueError(
                f"Expected one answer per sample of a teacher whose answers are cached, but got shape "
                f"{tuple(kept.shape)} for {len(keys)} samples.{inputs.undivided()} Pass DistillRecover(cache=False)."
            )
        if not self._places:
            check_samples(self.network, inputs, answer)
        path, lengths = self.folder / f"{keys[0]}.safetensors", text_lengths(inputs)
        of_tokens = lengths is not None and kept.shape[1:2] == inputs.kwargs["attention_mask"].shape[1:]
        parts = [row[:length] for row, length in zip(kept, lengths, strict=True)] if of_tokens and lengths else kept
        with atomic_file(path) as unfinished:
            rows = {key: row.detach().cpu().clone() for key, row in zip(keys, parts, strict=True)}
            save_file(rows, unfinished, {"layer": layer, "tokens": "yes" if of_tokens else ""})
        self._places |= dict.fromkeys(keys, path)
        return answer

    def _recalled(self, inputs: ModelInputs, keys: Sequence[str]) -> Tensor:
        """Return cached answers; zeros for padding tokens of a text."""
        files = [self._opened(self._places[key]) for key in keys]
        rows, about = [file.get_tensor(key) for file, key in zip(files, keys, strict=True)], files[0].metadata()
        if about["tokens"]:
            width = inputs.kwargs["attention_mask"].shape[1]
            rows = [F.pad(row, (0, 0, 0, width - len(row))) for row in rows]
        stacked = torch.stack(rows).to(device_of(self.network))
        answer: Tensor = get_module(self.network, about["layer"])(stacked) if about["layer"] else stacked
        return answer


class AnswerFolders:
    """Folder of the cached answers of a rank, beside the checkpoints.

    Args:
        trainer: Trainer of the run; without checkpoints, the folder is a temporary one, until `close`.
        ledger: Ledger of the run; a resumed run continues with the run's folder.
    """

    def __init__(self, trainer: pl.Trainer, ledger: Ledger) -> None:
        run = trainer.strategy.broadcast(ledger.run)
        name, kept = f"answers-{run[:8]}-{trainer.global_rank}", artifact_folder(trainer)
        self._temporary = Path(tempfile.mkdtemp(prefix="prunerecover-")) if kept is None else None
        earlier = [Path(trainer.ckpt_path).parent] if trainer.ckpt_path else []
        earlier += [Path(record.folder) for record in ledger.teachers.values()]
        self.paths = (self._temporary or kept or Path()) / name, [folder / name for folder in earlier]

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            rmtree(self._temporary, ignore_errors=True)


def check_samples(network: nn.Module, inputs: ModelInputs, answer: Tensor) -> None:
    """Raise ValueError if samples are not in the first dimension, as in sequence networks with time first.

    Args:
        network: Teacher. An answer with three dimensions is checked by running the last sample alone.
        inputs: One batch.
        answer: Predictions of the batch.
    """
    if answer.ndim != 3 or inputs.n_samples == 1 or is_transformers_model(network):
        return
    alone = predictions_of(call(network, inputs.select(torch.tensor([inputs.n_samples - 1]))))
    if alone.shape[1:] != answer.shape[1:] or feature_loss(alone[0], answer[-1]) > SAME:
        raise ValueError(
            f"Expected a cached teacher to have samples in the first dimension of its outputs, but got "
            f"{tuple(answer.shape)}, where the last row depends on earlier rows. Pass DistillRecover(cache=False)."
        )


def short_answer(network: nn.Module, inputs: ModelInputs) -> tuple[Tensor, Tensor, str]:
    """Return a network's predictions, the smallest tensor that determines the predictions, and the layer in between.

    Returns:
        The predictions, the inputs of the last linear layer, and the path of the layer, if the predictions are the
        layer's unchanged outputs and the inputs are fewer; else the predictions twice and "".
    """
    last: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args:
                last[name] = (args[0], output)

        return hook

    linears = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    widening = [(name, layer) for name, layer in linears if layer.in_features < layer.out_features]
    handles = [layer.register_forward_hook(keep(name)) for name, layer in widening]
    with removed_after(*handles):
        answer = predictions_of(call(network, inputs))
    for name, (given, output) in last.items():
        if output is answer:
            return answer, given, name
    return answer, answer, ""


def _keys(file: Any) -> list[str]:
    return list(file.keys())
