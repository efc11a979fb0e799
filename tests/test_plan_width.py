"""`plan_width` meets its budgets, leaves a model that equals the masked one, and says no clearly."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from typing import Any

import pytest
import timm
import torch
from score_cases import removable
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, Plan, apply_plan, find_groups, plan_depth, plan_width, recalibrate_batchnorm
from prunerecover.importance.losses import supervised_loss
from prunerecover.macs import count_macs
from prunerecover.recipes.cifar_resnet import CifarResNet
from prunerecover.surgery import apply_edits
from prunerecover.width.planning import WidthPlanner

Batches = list[tuple[Tensor, Tensor]]
IMAGE = torch.zeros(1, 3, 32, 32)


def cnn(seed: int = 0) -> nn.Module:
    """A ResNet-8 with padded shortcuts, its BatchNorm statistics in use."""
    torch.manual_seed(seed)
    model = CifarResNet(blocks=1, num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
    with torch.no_grad():
        model.train()(torch.randn(64, 3, 32, 32))
    return model.eval()


def vit(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, num_classes=4
    ).eval()


@pytest.fixture
def batches() -> Batches:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(32) % 4
    images = torch.randn(32, 3, 32, 32, generator=generator) + labels.view(-1, 1, 1, 1) / 2
    return list(zip(images.split(16), labels.split(16), strict=True))


def removed_share(model: nn.Module, plan: Plan, cost: str) -> float:
    if cost == "macs":
        return 1 - plan.result.macs / count_macs(model, IMAGE)
    return 1 - plan.result.params / sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("allocation", ["per_cost", "tolerance", "uniform", "global"])
@pytest.mark.parametrize("cost", ["macs", "params"])
def test_budgets_are_met_to_a_unit(batches: Batches, allocation: Any, cost: str) -> None:
    model = cnn()
    planner = WidthPlanner(model, batches=batches)
    for share in (0.1, 0.3, 0.5):
        plan = planner.plan(Budget(**{cost: share}), allocation=allocation)
        assert share <= removed_share(model, plan, cost) < share + 0.03  # ResNet-8's widest unit is 3% of it


@pytest.mark.parametrize("allocation", ["per_cost", "tolerance", "uniform", "global"])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("budget", [Budget(remove={"channel": 31}), Budget(ratio={"channel": 0.2})])
def test_budgets_in_units_are_met_exactly(batches: Batches, allocation: Any, rounds: int, budget: Budget) -> None:
    model = cnn()
    plan = plan_width(model, budget, batches=batches, allocation=allocation, rounds=rounds)
    available = sum(group.size for group in find_groups(model, IMAGE).groups)
    assert (
        sum(len(edit.gone) for edit in plan.edits if edit.op == "narrow")
        == budget.counts({"channel": available})["channel"]
    )


@pytest.mark.parametrize(
    "mode", [torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)], ids=["inference", "bf16"]
)
def test_the_mode_that_the_caller_is_in_does_not_matter(batches: Batches, mode: Any) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.3), batches=batches, rounds=2)
    with mode:
        given = [(x.clone(), y.clone()) for x, y in batches]  # inference tensors, in inference mode
        assert plan_width(model, Budget(macs=0.3), batches=given, rounds=2) == plan
        planner = WidthPlanner(model, batches=given)
        planner.scores("gate_taylor")
        found = planner.plan(Budget(macs=0.3))
        assert find_groups(model, IMAGE).groups == planner.groups
        apply_plan(model, found)
    assert found == plan_width(cnn(), Budget(macs=0.3), batches=batches)
    assert not any(p.is_inference() for p in model.parameters())


@pytest.mark.parametrize("model", [nn.Sequential(nn.ReLU()), nn.Identity()], ids=["relu", "identity"])
def test_a_model_without_parameters_has_nothing_to_narrow(model: nn.Module, batches: Batches) -> None:
    message = f"Expected {type(model).__name__} to have groups of kind channel, head, neuron, but it has none"
    with pytest.raises(ValueError, match=message):
        plan_width(model, Budget(macs=0.3), batches=batches)
    with pytest.raises(ValueError, match=message):
        find_groups(model, IMAGE)
    with pytest.raises(ValueError, match="Expected a model of a supported family"):
        plan_depth(model, remove={"block": 1}, batches=batches)


class Detector(nn.Module):
    """Takes a list of images, and targets that are not read in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = cnn()

    def forward(self, images: list[Tensor] | Tensor, targets: list[dict[str, Tensor]] | None = None) -> Tensor:
        return self.backbone(torch.stack(list(images)))


@pytest.mark.parametrize("allocation", ["per_cost", "tolerance"])
def test_lists_of_images_plan_as_batched_ones(batches: Batches, allocation: Any) -> None:
    def plan(inputs: list[Any]) -> Plan:
        pairs = list(zip(inputs, [y for _, y in batches], strict=True))
        return plan_width(Detector(), Budget(macs=0.3), batches=pairs, allocation=allocation)

    assert plan([[*x] for x, _ in batches]).edits == plan([x for x, _ in batches]).edits


def test_budgets_in_units_leave_other_kinds_alone(batches: Batches) -> None:
    plan = plan_width(vit(), Budget(remove={"neuron": 7}), batches=batches)
    assert {edit.kind for edit in plan.edits} == {"neuron"}
    planner = WidthPlanner(vit(), batches=batches)
    assert {edit.kind for edit in planner.plan(Budget(remove={"head": 2})).edits} == {"head"}


def check_against_masked(model: nn.Module, plan: Plan) -> None:
    """Apply a plan; what is gone adds nothing: its BatchNorms are zero, and so are its rows of padded shortcuts."""
    masked = copy.deepcopy(model)
    apply_edits(masked, [edit for edit in plan.edits if edit.op == "rewrite"])
    for edit in plan.edits:
        for part in edit.group if edit.op == "narrow" else ():
            holder, _, name = part.tensor.rpartition(".")
            if part.makes and ("bn" in holder or "shortcut" in holder) and not name.startswith("running"):
                with torch.no_grad():
                    masked.get_submodule(holder).state_dict(keep_vars=True)[name][list(edit.gone)] = 0.0
    apply_plan(model, plan)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(images), masked(images), rtol=1e-4, atol=1e-4)


def test_narrowed_equals_masked(batches: Batches) -> None:
    model = cnn()
    check_against_masked(model, plan_width(model, Budget(macs=0.4), batches=batches, replace="zero"))


def test_what_was_narrowed_once_can_be_narrowed_again(batches: Batches) -> None:
    """Rewritten shortcuts go on tying the residual channels, and let them go."""

    def ties(model: nn.Module) -> dict[str, tuple[Any, ...]]:
        return {g.name: (g.kind, g.sites, [s.tensor for s in g.slices]) for g in find_groups(model, IMAGE).groups}

    model = cnn()
    before = ties(model)
    check_against_masked(model, plan_width(model, Budget(macs=0.3), batches=batches, replace="zero"))
    assert ties(model) == before
    again = plan_width(model, Budget(macs=0.5), batches=batches, replace="zero")
    assert {"conv1", "layer2.0.conv2", "layer3.0.conv2"} <= {edit.unit for edit in again.edits}
    check_against_masked(model, again)
    assert ties(model) == before


def test_the_model_is_bit_identical_afterwards(batches: Batches) -> None:
    model = cnn().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    for allocation in ("per_cost", "tolerance"):
        plan_width(model, Budget(macs=0.3), batches=batches, allocation=allocation)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_least_salient_goes_first(batches: Batches) -> None:
    """Within a group, what stays has the higher scores; between groups of equal cost, too."""
    model = cnn()
    planner = WidthPlanner(model, batches=batches)
    plan = planner.plan(Budget(macs=0.3))
    (scores,) = planner.scores("gate_taylor")
    for edit in plan.edits:
        if edit.op == "narrow":
            kept, gone = scores[edit.unit][list(edit.keep)], scores[edit.unit][list(edit.gone)]
            assert kept.min() >= gone.max()


def test_tolerance_by_the_book(batches: Batches) -> None:
    model = cnn()
    planner = WidthPlanner(model, batches=batches)
    plan = planner.plan(allocation="tolerance", tolerance=0.3)
    low, high = planner.scores("u_score", "r_score")
    for group in planner.groups:
        left, size = plan.evidence["kept"][group.name]
        assert size - left == min(removable(low[group.name], high[group.name], 0.3), size - 1)
    assert plan.evidence["tolerance"] == 0.3
    assert plan.made_by.method == "width/tolerance"
    for entered, bound in plan.evidence["protected_mass"].values():
        assert entered <= bound + 1e-12


def test_latency_budget_is_measured(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once per MAC, a latency budget is one of MACs."""
    import prunerecover.width.planning as planning

    model = cnn()
    dense = count_macs(model, IMAGE)

    def clock(network: nn.Module, edits: Any, cost: str, example: Any, seed: int = 0) -> float:
        from prunerecover.copies import twin_of
        from prunerecover.surgery import apply_edits

        copied = twin_of(network)
        apply_edits(copied, edits)
        assert cost == "latency"
        return 1 - count_macs(copied, IMAGE) / dense

    monkeypatch.setattr(planning, "removed_share", clock)
    plan = plan_width(model, Budget(latency=0.3), batches=batches)
    assert 0.3 <= removed_share(model, plan, "macs") < 0.35


def test_rounds_meet_the_same_budget(batches: Batches) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.4), batches=batches, rounds=3)
    assert 0.4 <= removed_share(model, plan, "macs") < 0.45
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, IMAGE)


@pytest.mark.parametrize("cost", ["macs", "params"])
def test_rounds_do_not_take_what_others_took_beyond_their_part(batches: Batches, cost: str) -> None:
    """Each of four rounds needs half a neuron, and can take no less than one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    apply_plan(model, plan_width(model, Budget(**{cost: 0.25}), batches=batches, rounds=4))
    assert model[1].out_features == 6


def test_rounds_score_what_recalibrated_networks_do(batches: Batches) -> None:
    """A last batch of one sample is not recalibrated on."""
    batches = [*batches, tuple(part[:1] for part in batches[0])]
    model, ten = cnn(), Budget(remove={"channel": 10})
    together = plan_width(model, Budget(remove={"channel": 20}), batches=batches, rounds=2)
    first = plan_width(model, ten, batches=batches)
    apply_plan(model, first)
    recalibrate_batchnorm(model, batches[:-1])
    apart = first + plan_width(model, ten, batches=batches)
    assert apart.edits == together.edits
    assert all(torch.equal(value, together.tensors[name]) for name, value in apart.tensors.items())


def test_rounds_leave_hooks_of_the_model_behind(batches: Batches) -> None:
    """They may lead to what cannot be copied, such as a logger's lock."""

    class Logger:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def see(self, *_: Any) -> None:
            return None

    model = cnn()
    plan = plan_width(model, Budget(macs=0.3), batches=batches, rounds=2)
    model.conv1.register_forward_hook(Logger().see)
    assert plan_width(model, Budget(macs=0.3), batches=batches, rounds=2) == plan


def test_heads_and_neurons_of_a_vit(batches: Batches) -> None:
    model = vit()
    plan = plan_width(model, Budget(macs=0.4), batches=batches)
    assert set(plan.removed) == {"head", "neuron"}
    only = plan_width(model, Budget(macs=0.2), batches=batches, kinds=("neuron",), ignore="blocks.0.*")
    assert set(only.removed) == {"neuron"}
    assert all(name.startswith("blocks.1.") for name in only.removed["neuron"])


def test_depth_and_width_add_up(batches: Batches) -> None:
    model, images = vit(), torch.randn(2, 3, 32, 32)
    first = plan_depth(model, remove={"activation": 1}, batches=batches, replace="identity")
    apply_plan(model, first)
    second = plan_width(model, Budget(macs=0.2), batches=batches)
    apply_plan(model, second)
    both = vit()
    apply_plan(both, first + second)
    assert torch.equal(both(images), model(images))


def test_plan_narrows_alike_in_a_new_process(batches: Batches, tmp_path: Any) -> None:
    model, images = cnn(), torch.randn(2, 3, 32, 32)
    torch.save(model.state_dict(), tmp_path / "dense.pt")
    plan_width(model, Budget(macs=0.4), batches=batches).save(tmp_path / "plan.json")
    apply_plan(model, Plan.load(tmp_path / "plan.json"))
    torch.save(images, tmp_path / "images.pt")
    script = f"""
import torch
from prunerecover import Plan, apply_plan
from prunerecover.recipes.cifar_resnet import CifarResNet
from prunerecover.surgery import apply_edits
torch.set_num_threads({torch.get_num_threads()})
model = CifarResNet(blocks=1, num_classes=4).eval()
model.load_state_dict(torch.load("{tmp_path}/dense.pt"))
apply_plan(model, Plan.load("{tmp_path}/plan.json"))
torch.save(model(torch.load("{tmp_path}/images.pt")).detach(), "{tmp_path}/logits.pt")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), model(images).detach())


def test_recalibrated_model_is_ready_to_train(batches: Batches) -> None:
    model = cnn()
    apply_plan(model, plan_width(model, Budget(params=0.5), batches=batches))
    recalibrate_batchnorm(model, batches)
    F.cross_entropy(model.train()(batches[0][0]), batches[0][1]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_default_loss_is_the_cross_entropy(batches: Batches) -> None:
    model, (images, labels) = cnn(), batches[0]
    assert torch.equal(supervised_loss(model, (images, labels)), F.cross_entropy(model(images), labels))


def test_default_loss_of_a_language_model_is_its_own() -> None:
    from tiny_models import tiny_llama

    model, ids = tiny_llama(), torch.randint(10, (2, 6))
    batch = {"input_ids": ids, "labels": ids}
    assert torch.equal(supervised_loss(model, batch), model(**batch).loss)


@pytest.mark.parametrize("key", ["label", "labels"])
def test_labels_in_mappings_are_not_fed_to_the_network(batches: Batches, key: str) -> None:
    mappings = [{"x": images, key: labels} for images, labels in batches]
    assert plan_width(cnn(), Budget(macs=0.3), batches=mappings) == plan_width(cnn(), Budget(macs=0.3), batches=batches)
    assert find_groups(cnn(), mappings[0]) == find_groups(cnn(), batches[0])
    model = cnn()
    assert supervised_loss(model, mappings[0]) == supervised_loss(model, batches[0])


def test_latency_is_measured_without_the_loss() -> None:
    from tiny_models import tiny_llama

    ids = torch.randint(10, (2, 6))
    planner = WidthPlanner(tiny_llama(), batches=[{"input_ids": ids, "labels": ids}])
    assert planner.first_batch().kwargs.keys() == {"input_ids"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"Expected a budget, such as Budget\(macs=0.3\), and not both"),
        ({"budget": Budget(macs=0.1), "tolerance": 0.1}, "Expected removal and tolerance with allocation='tolerance'"),
        (
            {"budget": Budget(macs=0.1), "tolerance": 0.1, "allocation": "tolerance"},
            "Expected a budget or a tolerance, and not both",
        ),
        ({"budget": Budget(macs=0.1), "allocation": "best"}, "Expected allocation among per_cost, .*, but got 'best'"),
        (
            {"budget": Budget(macs=0.1), "protection": "taylor"},
            "Expected argument protection among u_score, .*'taylor'",
        ),
        (
            {"budget": Budget(macs=0.1), "removal": "u_score"},
            "allocation='per_cost'. What stays is decided by protection",
        ),
        (
            {"budget": Budget(ratio={"mlp": 0.1})},
            "Expected a budget in a share of macs, params or latency, or in units",
        ),
        ({"budget": Budget(remove={"head": 1, "neuron": 2})}, "in units of one kind among channel, .* add plans"),
        ({"budget": Budget(remove={"head": 1})}, "to have groups of kind head, but it has [0-9]* of kind channel"),
        ({"budget": Budget(remove={"channel": 9999})}, "Expected at most [0-9]* units of kind 'channel' to remove"),
        ({"budget": Budget(ratio={"channel": 0.99})}, "groups can meet, .* channels, but at most [0-9]* can go"),
        ({"budget": Budget(macs=0.99)}, "at most 9.* can go"),
        ({"budget": Budget(macs=0.1), "ignore": "layer9.*"}, "'layer9.*' matches none"),
        ({"budget": Budget(macs=0.1), "kinds": ("block",)}, "Expected kinds among channel, head, neuron"),
        ({"budget": Budget(macs=0.1), "rounds": 0}, "Expected rounds of at least 1, .* but got 0"),
        ({"tolerance": 0.1, "allocation": "tolerance", "rounds": 2}, "and a budget for several, but got 2 and None"),
        ({"tolerance": 1.5, "allocation": "tolerance"}, "Expected a tolerance between 0 and 1, but got 1.5"),
    ],
)
def test_bad_arguments(batches: Batches, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_width(cnn(), batches=batches, **arguments)


def test_no_batches() -> None:
    with pytest.raises(ValueError, match="Expected at least one calibration batch, but got none"):
        plan_width(cnn(), Budget(macs=0.1), batches=[])


@pytest.mark.parametrize("cost", ["macs", "latency"])
def test_labels_missing(batches: Batches, cost: str) -> None:
    with pytest.raises(ValueError, match=r"Expected labelled batches, .* Pass loss=f\(model, batch\)"):
        plan_width(cnn(), Budget(**{cost: 0.1}), batches=[images for images, _ in batches])


def test_labels_of_another_shape(batches: Batches) -> None:
    wrong = [(images, labels[:, None].expand(-1, 7)) for images, labels in batches]
    with pytest.raises(
        ValueError, match=r"Expected labels that fit logits of shape \(16, 4\), but got shape \(16, 7\)"
    ):
        plan_width(cnn(), Budget(macs=0.1), batches=wrong)


def test_one_class_has_no_separation(batches: Batches) -> None:
    same = [(images, torch.zeros_like(labels)) for images, labels in batches]
    with pytest.raises(ValueError, match="class"):
        plan_width(cnn(), Budget(macs=0.1), batches=same, allocation="tolerance")


def test_budget_in_steps_needs_a_share_or_a_number() -> None:
    with pytest.raises(ValueError, match="Expected a budget in a share of cost or a number of units, but got {'ratio'"):
        Budget(ratio={"head": 0.2}).in_steps(2)


def test_auxiliary_heads_of_training_still_run(batches: Batches) -> None:
    """What only a forward pass in training mode calls reads the units, too."""

    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
            self.head, self.aux = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Any:
            features = self.body(x).mean((2, 3))
            return (self.head(features), self.aux(features)) if self.training else self.head(features)

    model = Auxiliary()
    apply_plan(model, plan_width(model, Budget(macs=0.4), batches=batches))
    assert [logits.shape for logits in model.train()(batches[0][0])] == [(16, 4), (16, 4)]


def test_rounds_say_what_was_asked_and_what_is_kept(batches: Batches) -> None:
    model = cnn()
    plan = plan_width(model, Budget(macs=0.4), batches=batches, rounds=3)
    assert plan.made_by.arguments["budget"] == {"macs": 0.4}
    assert plan.made_by.arguments["rounds"] == 3
    groups = {group.name: group.size for group in find_groups(model, IMAGE).groups}
    apply_plan(model, plan)
    for name, size in groups.items():
        assert plan.evidence["kept"][name] == [model.get_parameter(f"{name}.weight").shape[0], size]


def test_latency_that_cannot_go_is_refused(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    import prunerecover.width.planning as planning

    monkeypatch.setattr(planning, "removed_share", lambda *_: 0.4)
    with pytest.raises(ValueError, match=r"can meet, 60.0% of the latency, but the most that was saved is 40.0%"):
        plan_width(cnn(), Budget(latency=0.6), batches=batches)


def test_budget_of_another_type(batches: Batches) -> None:
    with pytest.raises(TypeError, match="Expected argument budget to be a Budget, but got float"):
        plan_width(cnn(), 0.3, batches=batches)  # type: ignore[arg-type]


def test_nothing_left_to_narrow(batches: Batches) -> None:
    with pytest.raises(ValueError, match=r"Expected some groups outside ignore=\['\*'\], but all 6 are ignored"):
        plan_width(cnn(), Budget(macs=0.1), batches=batches, ignore="*")
