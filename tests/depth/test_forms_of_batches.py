"""Calibration batches of other forms: an encoder-decoder's, whose decoder reads labels, and those of ultralytics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from cases.models.tiny import tiny_images, tiny_timm
from cases.trainers import trainer_of
from torch import Tensor, nn
from torch.utils.data import DataLoader

from prunerecover import apply_plan, plan_depth
from prunerecover.callbacks import DepthPrune
from prunerecover.callbacks.ledger.ledger import Ledger
from prunerecover.families import describe as registry
from prunerecover.families.layout import Block, Layout

SMALL: dict[str, Any] = {"vocab_size": 32, "d_model": 16, "decoder_start_token_id": 0, "pad_token_id": 0}
T5 = {"d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
BART = {"encoder_layers": 2, "decoder_layers": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2}


def t5() -> nn.Module:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**SMALL, **T5)).eval()


def bart() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**SMALL, **BART)).eval()


def texts(n: int = 16) -> list[dict[str, Tensor]]:
    """Samples of sources and of targets of another length."""
    numbers = torch.Generator().manual_seed(1)
    sizes = {"input_ids": 7, "labels": 5}
    return [{name: torch.randint(3, 32, (size,), generator=numbers) for name, size in sizes.items()} for _ in range(n)]


def batches() -> list[dict[str, Tensor]]:
    return list(DataLoader(texts(), 4))  # type: ignore[arg-type]


class Module(pl.LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.net = network

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(**batch).loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


class Detector(Module):
    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(batch["img"].float() / 255).square().mean()  # type: ignore[no-any-return]


@pytest.fixture
def decoder_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of BART's decoder."""

    def read(model: nn.Module) -> Layout | None:
        if not isinstance(model, transformers.BartForConditionalGeneration):
            return None
        paths = [f"model.decoder.layers.{i}" for i in range(len(model.model.decoder.layers))]
        return Layout("BART", "model.decoder.layers", tuple(Block(p, None, None, None, "not listed") for p in paths))

    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    registry.register_family(read, "BART")


@pytest.mark.slow
@pytest.mark.usefixtures("decoder_family")
def test_a_decoder_reads_what_labels_are_shifted_to() -> None:
    network = bart()
    shifted = network.prepare_decoder_input_ids_from_labels
    given = [{**batch, "decoder_input_ids": shifted(batch["labels"])} for batch in batches()]
    from_labels, from_ids = (plan_depth(bart(), remove={"block": 1}, batches=b) for b in (batches(), given))
    assert from_labels.evidence["importance"] == from_ids.evidence["importance"]
    apply_plan(network, from_labels)
    assert len(network.model.decoder.layers) == 3
    assert network(**batches()[0]).loss.isfinite()


def images(n: int = 16) -> list[dict[str, Any]]:
    pixels = (tiny_images(n).sigmoid() * 255).to(torch.uint8)
    return [{"img": image, "cls": torch.zeros(1), "im_file": "a.jpg"} for image in pixels]


@pytest.mark.usefixtures("decoder_family")
@pytest.mark.parametrize(
    ("module", "make", "kind", "data"),
    [
        (Module, bart, "block", texts),
        pytest.param(Module, t5, "mlp", texts, marks=pytest.mark.slow),
        (Detector, tiny_timm, "attention", images),
    ],
    ids=["bart", "t5", "ultralytics"],
)
def test_a_trainer_prunes_by_its_batches(module: Any, make: Any, kind: str, data: Any, tmp_path: Path) -> None:
    own = module(make())
    prune = DepthPrune(remove={kind: 1}, calibration=16, target="net", merge="never")
    trainer_of(tmp_path, prune, epochs=1).fit(own, DataLoader(data(), 4))
    assert len(Ledger.of(own).events) == 1


@pytest.mark.slow
def test_t5_keeps_blocks_that_hand_on_the_biases_of_their_attentions() -> None:
    with pytest.raises(ValueError, match="but there is none .*returns several tensors"):
        plan_depth(t5(), remove={"block": 1}, batches=batches())


@pytest.mark.slow
def test_batches_of_ultralytics_are_their_images() -> None:
    loaded = list(DataLoader(images(), 4))  # type: ignore[arg-type]
    plain = [batch["img"].float() / 255 for batch in loaded]
    found, wanted = (plan_depth(tiny_timm(), remove={"attention": 1}, batches=b) for b in (loaded, plain))
    assert found.edits == wanted.edits
    assert found.evidence == wanted.evidence
