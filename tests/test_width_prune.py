"""WidthPrune inside a Trainer: it narrows, trains on, resumes, composes with depth, and says no clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import timm
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, WeightAveraging
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunerecover import Budget, Plan, load_pruned, merge, plan_depth, plan_width
from prunerecover.callbacks import DepthPrune, DistillRecover, PruneReport, WidthPrune
from prunerecover.callbacks.ledger import Ledger
from prunerecover.macs import count_macs
from prunerecover.recipes.cifar_resnet import CifarResNet

IMAGE = torch.zeros(1, 3, 16, 16)
HALF = Budget(macs=0.5)


class Classifier(pl.LightningModule):
    """An ordinary module around one network."""

    def __init__(self, network: str = "cnn") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = CifarResNet(blocks=1, num_classes=4) if network == "cnn" else vit()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=32, depth=3, num_heads=4, num_classes=4
    )


def rows(shuffle: bool = True) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 4
    images = torch.randn(48, 3, 16, 16, generator=generator) + labels.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(images, labels), batch_size=12, shuffle=shuffle)


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 3, **settings: Any) -> pl.Trainer:
    keep = ModelCheckpoint(dirpath=folder / "files", filename="{epoch}", save_top_k=-1, save_last=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(max_epochs=epochs, callbacks=[*callbacks, keep], **{**quiet, **settings})


def fit(folder: Path, *callbacks: pl.Callback, network: str = "cnn", ckpt: Any = None, **settings: Any) -> Classifier:
    pl.seed_everything(1, verbose=False)
    module = Classifier(network)
    trainer(folder, *callbacks, **settings).fit(module, rows(), rows(False), ckpt_path=ckpt, weights_only=False)
    return module


def prune(**arguments: Any) -> WidthPrune:
    return WidthPrune(**{"budget": HALF, "calibration": 24, "schedule": {"start": 1}, **arguments})


def left(module: Classifier) -> float:
    return count_macs(module.net, IMAGE) / count_macs(Classifier().net, IMAGE)


def test_half_goes_and_training_goes_on(tmp_path: Path) -> None:
    module = fit(tmp_path, prune())
    assert 0.46 < left(module) <= 0.5
    event = Ledger.of(module).events[0]
    assert event["by"] == "WidthPrune.0"
    assert event["epoch"] == 1
    assert all(p.requires_grad for p in module.net.parameters())
    plan = Plan.load(tmp_path / "files" / "plan.json")
    assert plan.removed["channel"]
    files = load_pruned(tmp_path / "files" / "pruned", model=Classifier().net)
    images = next(iter(rows(False)))[0]
    assert torch.equal(files.eval()(images), module.net.eval()(images))


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", prune(), epochs=4)
    fit(tmp_path / "cut", prune(), epochs=3)
    resumed = fit(tmp_path / "again", prune(), epochs=4, ckpt=tmp_path / "cut" / "files" / "epoch=1.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_less_pruned_files_are_tested_as_they_were(tmp_path: Path) -> None:
    module = fit(tmp_path, prune())
    runner = trainer(tmp_path, prune())
    dense = runner.test(module, rows(False), ckpt_path=tmp_path / "files" / "epoch=0.ckpt", weights_only=False)[0]
    assert left(module) == 1.0
    again = runner.test(module, rows(False), ckpt_path=tmp_path / "files" / "last.ckpt", weights_only=False)[0]
    assert left(module) <= 0.5
    assert dense != again


def test_batchnorm_is_recalibrated_at_the_surgery(tmp_path: Path) -> None:
    """Right after it, statistics are those of the narrowed network on the calibration samples."""
    module = fit(tmp_path, prune(calibration=48), limit_train_batches=1, epochs=2)
    norm = module.net.bn1
    assert int(norm.num_batches_tracked) == 4 + 1  # four calibration batches, one training step since


def test_schedule_divides_the_budget(tmp_path: Path) -> None:
    steps = prune(schedule={"start": 0, "every": 1, "times": 3})
    module = fit(tmp_path, steps)
    events = Ledger.of(module).events
    assert [event["epoch"] for event in events] == [0, 1, 2]
    full = count_macs(Classifier().net, IMAGE)
    shares = [1 - event["macs"] / full for event in events]
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.04)


def test_surgeries_do_not_take_what_others_took_beyond_their_part(tmp_path: Path) -> None:
    """Each of four needs half a neuron, and can take no less than one."""
    pl.seed_everything(1, verbose=False)
    module = Classifier()
    module.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    steps = prune(budget=Budget(macs=0.25), schedule={"every": 1, "times": 4})
    with pytest.warns(UserWarning, match="WidthPrune.0 removed nothing"):
        trainer(tmp_path, steps, epochs=4).fit(module, rows())
    assert [len(event["units"]) for event in Ledger.of(module).events] == [1, 0, 1, 0]
    assert module.net[1].out_features == 6


def test_surgeries_in_depth_do_not_either(tmp_path: Path) -> None:
    """An MLP is a sixth of the network: the second one goes when the first is not enough, and not every time."""
    steps = DepthPrune(Budget(macs=0.2), calibration=24, schedule={"every": 1, "times": 4})
    with pytest.warns(UserWarning, match="DepthPrune.0 removed nothing"):
        module = fit(tmp_path, steps, network="vit", epochs=4)
    assert [len(event["units"]) for event in Ledger.of(module).events] == [1, 0, 0, 1]
    assert [event["taken"].get("macs", 0) for event in Ledger.of(module).events] == pytest.approx(
        [0.1724, 0, 0, 0.2083], abs=1e-3
    )
    merge(module.net)
    assert count_macs(module.net, IMAGE) / count_macs(vit(), IMAGE) == pytest.approx((1 - 0.1724) * (1 - 0.2083), 1e-3)


def test_tolerance_without_a_budget(tmp_path: Path) -> None:
    module = fit(tmp_path, WidthPrune(tolerance=0.3, allocation="tolerance", calibration=24))
    assert left(module) < 1
    assert Ledger.of(module).plans["net"].evidence["tolerance"] == 0.3


def test_depth_width_and_distillation_on_one_module(tmp_path: Path) -> None:
    callbacks = [
        DepthPrune(remove={"activation": 1, "attention": 1}, calibration=24, schedule={"start": 0}),
        WidthPrune(Budget(macs=0.2), calibration=24, schedule={"start": 1}),
        DistillRecover(),
        PruneReport(tmp_path / "report"),
    ]
    whole = fit(tmp_path / "whole", *callbacks, network="vit", epochs=4)
    plan = Ledger.of(whole).plans["net"]
    assert {"activation", "attention", "neuron"} <= set(plan.removed)
    again = [DepthPrune(remove={"activation": 1, "attention": 1}, calibration=24, schedule={"start": 0})]
    again += [WidthPrune(Budget(macs=0.2), calibration=24, schedule={"start": 1}), DistillRecover()]
    file = tmp_path / "whole" / "files" / "epoch=1.ckpt"
    resumed = fit(tmp_path / "again", *again, network="vit", epochs=4, ckpt=file)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert (tmp_path / "report" / "report.md").is_file()


def test_given_plan_is_applied_before_test(tmp_path: Path) -> None:
    module = Classifier()
    plan = plan_width(module.net, HALF, batches=list(rows(False)))
    with pytest.warns(UserWarning, match="without recalibrating BatchNorm, whose statistics are still those"):
        trainer(tmp_path, WidthPrune(plan=plan)).test(module, rows(False), verbose=False)
    assert left(module) <= 0.5


def test_labels_of_unusual_batches(tmp_path: Path) -> None:
    """A batch that is a mapping with other names: the U-Score is told where labels are."""

    class Mapped(Classifier):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch["pixels"]), batch["species"])

    loader = DataLoader([{"pixels": x, "species": y} for x, y in rows(False).dataset], batch_size=12)
    callback = WidthPrune(HALF, allocation="tolerance", labels=lambda batch: batch["species"], calibration=24)
    module = Mapped()
    trainer(tmp_path, callback, epochs=1).fit(module, loader)
    assert left(module) <= 0.5


def test_labels_that_are_not_found_are_asked_for(tmp_path: Path) -> None:
    class Several(Classifier):
        def training_step(self, batch: list[Any], batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1]["species"])

    loader = DataLoader([(x, {"species": y}) for x, y in rows(False).dataset], batch_size=12)
    message = r"Expected labelled batches for the U-Score, .* but got list without\. Pass labels=, a function batch"
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, prune(allocation="tolerance"), epochs=2).fit(Several(), loader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Expected exactly one of budget, tolerance and plan"),
        ({"budget": HALF, "plan": Plan()}, "Expected exactly one of budget, tolerance and plan"),
        ({"budget": Budget(remove={"head": 1})}, "Expected WidthPrune's budget in a share of cost or in experts"),
        ({"tolerance": 0.2}, "Expected removal and tolerance with allocation='tolerance' only"),
        (
            {"budget": HALF, "schedule": {"every": 1}},
            "Expected argument times, and no step, in a schedule with every=1",
        ),
        (
            {"tolerance": 0.2, "allocation": "tolerance", "schedule": {"every": 1}},
            "Expected a budget with schedule every=1, .* a plan or a tolerance is applied at once",
        ),
        ({"budget": HALF, "schedule": {"times": 2}}, "Expected argument every with times"),
        ({"budget": HALF, "calibration": 0}, "Expected argument calibration to be at least 1"),
        ({"tolerance": 1.5, "allocation": "tolerance"}, "Expected a tolerance between 0 and 1, but got 1.5"),
        ({"budget": HALF, "kinds": ("chanel",)}, "Expected kinds among channel, .* but got 'chanel'"),
        ({"plan": Plan(), "allocation": "nonsense"}, "Expected no allocation beside a plan, .* allocation='nonsense'"),
        ({"plan": Plan(), "kinds": "head", "ignore": "layer4.*"}, r"no kinds, ignore .* kinds=\('head',\), ignore="),
        ({"plan": Plan(), "loss": print}, "Expected no loss beside a plan, which says already what goes"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WidthPrune(**arguments)


def test_times_with_units_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected argument times with a budget in a share of cost .*, but got units"):
        DepthPrune(remove={"attention": 1}, schedule={"every": 1, "times": 2})


def test_several_networks_need_a_target(tmp_path: Path) -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(2, 2)

    with pytest.raises(ValueError, match="Expected one network inside Two, but found net, other. Say which with"):
        trainer(tmp_path, prune(), epochs=2).fit(Two(), rows())


class Direct(Classifier):
    """The layers are the module's own."""

    def __init__(self) -> None:
        pl.LightningModule.__init__(self)
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(images))).mean((2, 3)))

    def net(self, images: Tensor) -> Tensor:
        return self(images)


def test_the_module_itself_is_the_network(tmp_path: Path) -> None:
    images, files = next(iter(rows(False)))[0], tmp_path / "files"
    whole, resumed = Direct(), Direct()
    trainer(tmp_path, prune(target="")).fit(whole, rows(False), rows(False))
    assert whole.conv.out_channels == whole.norm.num_features == whole.head.in_features == 4
    again = trainer(tmp_path / "again", prune(target=""))
    again.fit(resumed, rows(False), rows(False), ckpt_path=files / "epoch=1.ckpt", weights_only=False)
    expected = whole.eval()(images)
    loaded = load_pruned(files / "last.ckpt", Direct), load_pruned(files / "pruned", Direct())
    for module in (resumed, *loaded):
        assert torch.equal(module.eval()(images), expected)
    with pytest.raises(TypeError, match="but got a LightningModule instance"):
        load_pruned(files / "pruned", Classifier())


def test_targets_that_are_refused_say_what_to_do(tmp_path: Path) -> None:
    class Inline(Direct):
        def net(self, images: Tensor) -> Tensor:
            return self.forward(images)  # past the hooks of the module

    message = "found conv, norm, head. Say which with target='conv', or with target='' that the module itself is"
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, prune(), epochs=2).fit(Direct(), rows())
    message = "inside Direct as target, but there is no module at 'model'. It has conv, norm, head; '' is the module"
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, prune(target="model"), epochs=2).fit(Direct(), rows())
    with pytest.raises(ValueError, match=r"Expected Inline\.training_step to call the module itself, self\(\.\.\.\)"):
        trainer(tmp_path, prune(target=""), epochs=2).fit(Inline(), rows())


def test_kinds_as_a_string(tmp_path: Path) -> None:
    assert left(fit(tmp_path, prune(kinds="channel"))) <= 0.5


def test_resuming_with_another_rule_is_refused(tmp_path: Path) -> None:
    steps = {"schedule": {"start": 0, "every": 1, "times": 2}}
    fit(tmp_path, prune(**steps), epochs=2)
    with pytest.raises(ValueError, match=r"Expected WidthPrune.0 with the arguments of the run that is resumed"):
        fit(tmp_path, prune(**steps, allocation="uniform"), epochs=3, ckpt=tmp_path / "files" / "epoch=0.ckpt")


def test_manual_optimization_without_a_loss(tmp_path: Path) -> None:
    class Manual(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    module = Manual()
    trainer(tmp_path, prune(protection="magnitude"), epochs=2).fit(module, rows(), rows(False))
    assert left(module) <= 0.5
    with pytest.raises(ValueError, match=r"Expected argument loss=.* protection='magnitude' in width"):
        trainer(tmp_path / "again", prune(), epochs=2).fit(Manual(), rows(), rows(False))


def test_last_batch_of_one_sample_is_not_recalibrated_on(tmp_path: Path) -> None:
    class Features(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    module = Features()
    trainer(tmp_path, prune(calibration=13), epochs=2).fit(module, rows(), rows(False))
    assert module.net[1].out_features < 16


class Seen(pl.Callback):
    """Keeps what the network gives at the start of each epoch."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        mode = pl_module.net.training
        with torch.no_grad():
            self.outputs.append(pl_module.net.eval()(next(iter(rows(False)))[0]))
        pl_module.net.train(mode)


def test_layers_are_reconstructed_after_the_surgery(tmp_path: Path) -> None:
    errors = {}
    for reconstruct in (True, False):
        before, after = Seen(), Seen()
        narrow = prune(reconstruct=reconstruct, calibration=48)
        fit(tmp_path / str(reconstruct), before, narrow, after, network="vit", epochs=2)
        errors[reconstruct] = float((before.outputs[1] - after.outputs[1]).square().mean())
    assert errors[True] < 0.8 * errors[False]


@pytest.mark.parametrize(
    ("network", "reconstruct", "kept"),
    [("cnn", None, True), ("cnn", False, False), ("vit", None, False), ("vit", True, True)],
)
def test_networks_with_batchnorm_are_reconstructed(network: str, reconstruct: bool | None, kept: bool) -> None:
    dense = Classifier(network).net
    plan = plan_width(dense, HALF, batches=[next(iter(rows()))])
    assert (prune(reconstruct=reconstruct).keep(dense, plan) is not None) == kept
    assert prune(reconstruct=reconstruct).keep(dense, Plan()) is None


def test_reconstruction_of_a_plan_that_also_removes_layers_is_refused_at_once(tmp_path: Path) -> None:
    network = vit().eval()
    batches = [next(iter(rows()))]
    shallow = plan_depth(network, remove={"attention": 1}, batches=batches, replace="zero")
    with pytest.raises(ValueError, match="Expected a plan that only narrows for reconstruct=True, but got one that"):
        fit(tmp_path, WidthPrune(plan=shallow, reconstruct=True), network="vit")


class Averaged(pl.Callback):
    """Keeps the parameters and buffers of the network and of its average right after the surgery."""

    def __init__(self, average: WeightAveraging) -> None:
        self.average, self.pairs = average, dict[str, tuple[Tensor, Tensor]]()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        copies = self.average._average_model.module.net.state_dict()
        live = pl_module.net.state_dict()
        self.pairs = {name: (live[name].clone(), copies[name].clone()) for name in live}


def test_averages_move_along_with_reconstruction(tmp_path: Path) -> None:
    """An average that was the network before the surgery is the network after it."""
    average = WeightAveraging(avg_fn=lambda averaged, current, n: current)
    seen = Averaged(average)
    fit(tmp_path, average, prune(), seen, epochs=2)
    assert seen.pairs
    for live, averaged in seen.pairs.values():
        torch.testing.assert_close(live, averaged)


@pytest.mark.parametrize("reconstruct", [True, False])
def test_averages_take_the_statistics_that_were_estimated_anew(reconstruct: bool, tmp_path: Path) -> None:
    """Those of the dense network would stay in them for thousands of steps."""
    average = EMAWeightAveraging(decay=0.999)
    seen = Averaged(average)
    fit(tmp_path, average, prune(reconstruct=reconstruct), seen, epochs=2)
    running = [name for name in seen.pairs if "running" in name]
    assert running
    for name in running:
        assert torch.equal(*seen.pairs[name]), name
    assert not torch.equal(*seen.pairs["linear.weight"])
