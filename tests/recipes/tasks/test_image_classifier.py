"""ImageClassifier is the named timm model, with training and scores as in the libraries' own functions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from prunerecover.callbacks import DepthPrune
from prunerecover.recipes.networks.model_names import expand, preprocessing, timm_name
from prunerecover.recipes.tasks.image_classifier import ImageClassifier, read_label_map

TINY = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def tiny(model: str = "vit_tiny_patch16_224", **kwargs: object) -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(model, model_kwargs=dict(TINY), **kwargs)


def trainer(**kwargs: object) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", enable_checkpointing=False, **quiet, **kwargs)


def rows(batches: Batches) -> DataLoader:
    pairs = [(x, int(y)) for images, labels in batches for x, y in zip(images, labels, strict=True)]
    return DataLoader(pairs, batch_size=8)


def test_logits_of_two_heads_are_timms_average(grey_batches: Batches) -> None:
    module = tiny("deit_tiny_distilled_patch16_224").eval()
    images = grey_batches[0][0]
    assert torch.equal(module(images), module.model(images))


def test_label_map_selects_columns_of_the_head(grey_batches: Batches) -> None:
    full, mapped = tiny().eval(), tiny(label_map=[3, 1]).eval()
    images = grey_batches[0][0]
    assert torch.equal(mapped(images), full(images)[:, [3, 1]])
    assert mapped.state_dict().keys() == full.state_dict().keys()


@pytest.mark.parametrize("content", [[5, 0, 7], {"imagenet1k_index": [5, 0, 7]}])
def test_label_map_file_equals_the_list(content: object, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(content))
    assert torch.equal(read_label_map(str(path)), read_label_map([5, 0, 7]))


@pytest.mark.parametrize(("mixup", "training", "size"), [(0.0, True, 8), (0.8, False, 8), (0.8, True, 5)])
def test_loss_is_cross_entropy_unless_mixed(grey_batches: Batches, mixup: float, training: bool, size: int) -> None:
    module = tiny(mixup=mixup, label_smoothing=0.1).train(training)
    images, labels = (tensor[:size] for tensor in grey_batches[0])
    expected = F.cross_entropy(module.model(images), labels, label_smoothing=0.1)
    assert torch.equal(module.training_step((images.clone(), labels), 0), expected)


def test_mixed_loss_equals_timms_mixup_and_soft_targets(grey_batches: Batches) -> None:
    from timm.data import Mixup

    module = tiny(mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    images, labels = grey_batches[0]
    np.random.seed(3)
    loss = module.training_step((images.clone(), labels), 0)
    np.random.seed(3)
    mixed, soft = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=4)(images.clone(), labels)
    expected = -(soft * module.model(mixed).log_softmax(-1)).sum(-1).mean()
    assert torch.allclose(loss, expected)


def test_distilled_loss_is_the_mean_over_both_heads(grey_batches: Batches) -> None:
    module = tiny("deit_tiny_distilled_patch16_224")
    module.model.set_distilled_training(True)
    images, labels = grey_batches[0]
    heads = module.train().model(images)
    assert isinstance(heads, tuple)
    expected = sum(F.cross_entropy(h, labels) for h in heads) / 2
    assert torch.allclose(module.training_step((images, labels), 0), expected)


def test_accuracies_equal_counting_and_predictions_are_probabilities(grey_batches: Batches) -> None:
    module = tiny(label_map=[0, 1, 2, 3])
    images, labels = (torch.cat(t) for t in zip(*grey_batches, strict=True))
    (found,) = trainer().validate(module, rows(grey_batches), verbose=False)
    predicted = torch.cat(trainer().predict(module, rows(grey_batches)))
    with torch.no_grad():
        torch.testing.assert_close(predicted, module.eval().model(images).softmax(-1))
    assert found["val_top1"] == pytest.approx((predicted.argmax(-1) == labels).float().mean().item())
    assert found["val_top5"] == 1.0  # of 4 classes
    assert set(trainer().test(module, rows(grey_batches), verbose=False)[0]) == {"test_loss", "test_top1", "test_top5"}


def test_a_fit_behind_a_validation_decays_no_vectors(grey_batches: Batches) -> None:
    """The sums of a `validate` before cannot be added to in a fit."""
    module, run = tiny(weight_decay=0.3), trainer(max_epochs=1)
    run.validate(module, rows(grey_batches), verbose=False)
    run.fit(module, rows(grey_batches), rows(grey_batches))
    assert "val_top1" in run.callback_metrics
    by_decay = {g["weight_decay"]: g["params"] for g in run.optimizers[0].param_groups}
    assert all(p.ndim >= 2 for p in by_decay[0.3])
    assert {id(module.model.pos_embed), id(module.model.cls_token)} <= {id(p) for p in by_decay[0.0]}
    assert sum(map(len, by_decay.values())) == len(list(module.parameters()))


def test_learning_rate_is_a_ramp_then_a_cosine(grey_batches: Batches) -> None:
    class Rates(pl.Callback):
        seen: list[float] = []

        def on_train_batch_start(self, run: pl.Trainer, *_: object) -> None:
            self.seen.append(run.optimizers[0].param_groups[0]["lr"])

    rates = Rates()
    module = tiny(learning_rate=1.0, min_learning_rate=0.1, warmup_epochs=0.5)  # 2 of 4 steps an epoch
    trainer(max_epochs=3, callbacks=[rates]).fit(module, rows(grey_batches))
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)]
    assert rates.seen == pytest.approx([1 / 3, 2 / 3, *cosine])


class RatesAtStart(pl.Callback):
    """Peak learning rates by parameter, before any surgery."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.found = rates(trainer, pl_module)


def rates(runner: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
    of = {id(p): group["initial_lr"] for group in runner.optimizers[0].param_groups for p in group["params"]}
    return {name: of[id(p)] for name, p in module.named_parameters() if id(p) in of}


def test_each_layer_learns_at_a_share_of_the_next_ones_rate_also_after_surgery(grey_batches: Batches) -> None:
    module, start = tiny(layer_decay=0.5, learning_rate=1e-3), RatesAtStart()
    prune = DepthPrune(remove={"attention": 1}, schedule=1, calibration=8, search="one_shot")
    runner = trainer(max_epochs=2, callbacks=[prune, start])
    runner.fit(module, rows(grey_batches))
    shares = {"head.weight": 1, "blocks.1.mlp.fc1.weight": 1 / 2, "blocks.0.mlp.fc1.weight": 1 / 4}
    shares |= {"patch_embed.proj.weight": 1 / 8, "pos_embed": 1 / 8}
    found = rates(runner, module)
    assert {name: found[f"model.{name}"] / 1e-3 for name in shares} == pytest.approx(shares)
    kept = {name: rate for name, rate in found.items() if name in start.found}  # the attention may leave a bias
    assert len(kept) < len(start.found)
    assert kept == {name: start.found[name] for name in kept}


def test_wrong_optimizers_are_refused(grey_batches: Batches) -> None:
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=rf"layer_decay to be in \(0, 1\], but got {share}. 0.75 is usual"):
            trainer(max_epochs=1).fit(tiny(layer_decay=share), rows(grey_batches))
    with pytest.raises(ValueError, match="Expected a training run with an end"):
        trainer(max_epochs=-1).fit(tiny(), rows(grey_batches))


def test_checkpoint_alone_rebuilds_the_classifier(grey_batches: Batches, tmp_path: Path) -> None:
    module, run = tiny(label_map=[2, 0, 1, 3]), trainer(max_steps=1)
    run.fit(module, rows(grey_batches))
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = ImageClassifier.load_from_checkpoint(tmp_path / "a.ckpt")
    images = grey_batches[0][0]
    with torch.no_grad():
        assert torch.equal(again.eval()(images), module.eval()(images))


def test_local_folder_is_the_saved_model(
    make_vit: Callable[..., nn.Module], tmp_path: Path, grey_batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timm.models import save_for_hf

    saved = make_vit()
    args = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2}
    save_for_hf(saved, tmp_path, {"model_args": args, "num_classes": 4}, safe_serialization=True)
    monkeypatch.setenv("WEIGHTS", str(tmp_path))
    loaded = ImageClassifier("local-dir:$WEIGHTS", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(loaded(grey_batches[0][0]), saved(grey_batches[0][0]))
    assert preprocessing("local-dir:$WEIGHTS")["interpolation"] == saved.pretrained_cfg["interpolation"]
    assert loaded.hparams["model"] == "local-dir:$WEIGHTS"


def test_hub_ids_get_timms_prefix() -> None:
    assert timm_name("timm/resnet18.a1_in1k") == timm_name("hf-hub:timm/resnet18.a1_in1k")
    assert timm_name("resnet18") == "resnet18"


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: expand("${PRUNERECOVER_NOWHERE}/models"), "variable PRUNERECOVER_NOWHERE to be set.*Set it"),
        (lambda: ImageClassifier("local-dir:/none"), r"Expected a folder with timm's config\.json"),
        (lambda: preprocessing("deit_gigantic"), "Expected the name of a timm model, but got 'deit_gigantic'"),
        *(
            (lambda bad=bad: read_label_map(bad), "label_map to be a list of different cl")
            for bad in ([1, 1], [-1, 2], ["a"])
        ),
        (lambda: read_label_map("/none.json"), "Expected a JSON file with class indices"),
        (lambda: tiny(label_map=[0, 4]), r"head of 4 classes \(0-3\), but it names class 4"),
    ],
)
def test_models_and_label_maps_that_are_not_there_or_do_not_fit(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused()


@pytest.mark.parametrize("label", [4, -1])
def test_labels_of_more_classes_than_the_head_scores_are_an_error(label: int) -> None:
    module, batch = tiny(), (torch.rand(2, 1, 8, 8), torch.tensor([3, label]))
    message = f"labels from 0 to 3, as 4 classes are scored, but got {label}. Set num_classes to as many"
    with pytest.raises(ValueError, match=message):
        module.training_step(batch, 0)
    with pytest.raises(ValueError, match=message):
        module.update_metrics(module.val_metrics, torch.rand(2, 4), batch[1])
