"""The plain functions in loops outside Lightning: a bare PyTorch loop, and transformers.Trainer."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.models.habits import loader, tiny_vit
from torch.nn import functional as F

from prunerecover import apply_plan, plan_depth, update_optimizer


def train(model, optimizer, scheduler, epochs=1):
    model.train()
    for _ in range(epochs):
        for images, labels in loader():
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            scheduler.step()


@pytest.mark.parametrize(("replace", "make"), [("calibrated", torch.optim.AdamW), ("identity", torch.optim.Adagrad)])
def test_bare_loop(make, replace):
    """Prune during training: every remaining weight trains on with its state, and nothing else is held."""
    torch.manual_seed(0)
    model = tiny_vit()
    matrices, vectors = (
        [(n, p) for n, p in model.named_parameters() if (p.ndim > 1) is many] for many in (True, False)
    )
    optimizer = make([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=12, cycle_momentum=False)
    train(model, optimizer, scheduler)
    state = {p: {k: v for k, v in optimizer.state[p].items()} for p in model.parameters()}

    plan = plan_depth(model, remove={"attention": 1, "activation": 2}, batches=loader(shuffle=False), replace=replace)
    update_optimizer(optimizer, apply_plan(model, plan))

    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == set(model.parameters())
    assert set(optimizer.state) <= set(held)
    assert all(optimizer.state[p] == state[p] for p in held if p in state)
    assert all(p.ndim > 1 for p in optimizer.param_groups[0]["params"])  # a new weight joins its predecessor's group
    names = dict(model.named_parameters())
    for group in optimizer.param_groups:
        assert all(names[name] is p for name, p in zip(group["param_names"], group["params"], strict=True))
    before = {name: p.detach().clone() for name, p in names.items()}
    train(model, optimizer, scheduler)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_lbfgs_starts_anew():
    """Steps after surgery equal the steps of a new optimizer."""
    model, (images, labels) = tiny_vit(), next(iter(loader(shuffle=False)))

    def steps(net, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    def new(net):
        return torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=3)

    optimizer = new(model)
    steps(model, optimizer)
    plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=[(images, labels)])
    with pytest.warns(UserWarning, match="LBFGS starts anew: its estimate of the curvature is over all parameters"):
        update_optimizer(optimizer, apply_plan(model, plan))
    twin = copy.deepcopy(model)
    steps(model, optimizer)
    steps(twin, new(twin))
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
