"""An interrupted search continues after its last result, with the same plan."""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases.depth.clock import counts_parameters
from cases.depth.interrupted import Interrupts
from cases.models.tiny import VOCABULARY, tiny_llama
from cases.sampling import first, one_in
from torch import nn

from prunerecover import Budget, Plan, plan_depth
from prunerecover.cost.statistics import Interval
from prunerecover.store.search_store import SearchStore, delete_results, results_in
from prunerecover.surgery import saved_cost

TEXTS = torch.randint(3, VOCABULARY, (24, 12), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def convs() -> nn.Module:
    """Return convolutions of equal width, each with a BatchNorm, whose statistics are buffers."""
    torch.manual_seed(0)
    parts = [(nn.Conv2d(8 if i else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(5)]
    return nn.Sequential(*(part for three in parts for part in three), nn.Flatten(), nn.Linear(8 * 8 * 8, 5)).eval()


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch, labels=batch["input_ids"]).loss


SEARCHES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "blocks that leave maps": (tiny_llama, {"remove": {"block": 2}}),
    "layers of any network": (convs, {"remove": {"layer": 2}}),
    "parts of blocks": (tiny_llama, {"remove": {"attention": 1, "mlp": 1}}),
    "a share of the cost": (tiny_llama, {"budget": Budget(macs=0.3)}),
    "fitted anew for every set": (tiny_llama, {"remove": {"attention": 2}, "search": "exact"}),
    "by a loss": (tiny_llama, {"remove": {"block": 2}, "search": "exact", "importance": "cross_entropy", "loss": loss}),
    "ranked once": (tiny_llama, {"remove": {"mlp": 2}, "search": "one_shot"}),
    "layers in rounds": (convs, {"remove": {"layer": 2}, "search": "rounds"}),
}


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


def changed(model: nn.Module, name: str) -> nn.Module:
    """Change a number of a model that a hash of a few entries would miss."""
    tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
    with torch.no_grad():
        tensor.view(-1)[1].mul_(1.5)
    return model


def batches_for(model: nn.Module) -> list[Any]:
    if isinstance(model, nn.Sequential):
        return list(IMAGES.split(4))
    return [{"input_ids": some} for some in TEXTS.split(4)]


def planned(model: nn.Module, **how: Any) -> Plan:
    return plan_depth(model, batches=batches_for(model), **how)


def same(one: Plan, other: Plan) -> bool:
    return one == other and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", first(2, SEARCHES))
def test_it_goes_on_behind_the_last_result(name: str, tmp_path: Path, interrupts: Interrupts) -> None:
    build, how = SEARCHES[name]
    model = build()
    whole = planned(model, **how)
    interrupts.begin()
    assert same(planned(model, **how, store=tmp_path / "whole"), whole)
    results = interrupts.computed
    assert results >= 2
    for done in {1, results - 1}:
        store = tmp_path / f"interrupted_{done}"
        interrupts.begin(done)
        with pytest.raises(KeyboardInterrupt):
            planned(model, **how, store=store)
        interrupts.begin()
        assert same(planned(model, **how, store=store), whole)
        assert interrupts.computed == results - done
    interrupts.begin()
    assert same(planned(build(), **how, store=tmp_path / "whole"), whole)
    assert interrupts.computed == 0


@pytest.mark.slow
def test_a_latency_is_not_measured_again(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, how = tiny_llama(num_hidden_layers=6), {"budget": Budget(latency=0.3), "store": tmp_path, "search": "greedy"}
    timed = counts_parameters(monkeypatch)
    interrupts.begin(12)
    with pytest.raises(KeyboardInterrupt):
        planned(model, **how)
    before = len(timed)
    interrupts.begin()
    whole = planned(model, **how)
    assert 0 < before < len(timed)
    half = SimpleNamespace(ratio=Interval(0.5, 0.5, 0.5, 0.95))
    monkeypatch.setattr(saved_cost, "latency_ratio", lambda *_, **__: half)  # another clock would decide otherwise
    interrupts.begin()
    assert same(planned(model, **how), whole)
    assert interrupts.computed == 0


OTHERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a weight": lambda model: changed(model, "model.layers.1.mlp.up_proj.weight"),
    "a buffer": lambda model: changed(model, "model.rotary_emb.inv_freq"),
    "the precision": lambda model: model.double(),
    "a setting that the weights do not show": lambda _: tiny_llama(rms_norm_eps=0.5),
    "an activation": lambda _: tiny_llama(hidden_act="gelu"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", one_in(3, OTHERS))
def test_another_network_finds_nothing_in_the_folder(what: str, tmp_path: Path, interrupts: Interrupts) -> None:
    planned(tiny_llama(), remove={"mlp": 1}, store=tmp_path)
    other = OTHERS[what](tiny_llama())
    alone = planned(other, remove={"mlp": 1})
    interrupts.begin()
    assert same(planned(other, remove={"mlp": 1}, store=tmp_path), alone)
    assert interrupts.computed > 1


def test_another_search_finds_nothing_in_the_folder(tmp_path: Path, interrupts: Interrupts) -> None:
    model, batches = convs(), list(IMAGES.split(4))

    def computed(budget: dict[str, int], batches: list[Any], **how: Any) -> int:
        interrupts.begin()
        plan_depth(model, remove=budget, batches=batches, store=tmp_path, **how)
        return interrupts.computed

    assert computed({"layer": 2}, batches) > 1
    assert computed({"layer": 2}, batches) == 0
    assert computed({"layer": 1}, batches) > 0
    assert computed({"layer": 2}, batches, seed=1) > 1
    assert computed({"layer": 2}, batches, search="greedy") > 1
    assert computed({"layer": 2}, batches[:-1]) > 1
    assert computed({"layer": 2}, [{"input": some} for some in batches]) > 1


@pytest.mark.slow
def test_labels_tell_searches_apart_whatever_they_are(tmp_path: Path, interrupts: Interrupts) -> None:
    def by_labels(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(**batch[0]).logits.mean() * batch[1]["sign"]

    how = {"remove": {"block": 1}, "search": "exact", "importance": "cross_entropy", "loss": by_labels}
    for sign in (1.0, 2.0, torch.tensor(3.0), UserDict({"of": 4})):
        interrupts.begin()
        labels = {"sign": sign["of"] if isinstance(sign, UserDict) else sign, "beside": sign}
        batches = [({"input_ids": some}, labels) for some in TEXTS.split(4)]
        plan_depth(tiny_llama(), batches=batches, store=tmp_path, **how)
        assert interrupts.computed > 1


@pytest.mark.slow
def test_what_changes_unseen_is_refused(tmp_path: Path) -> None:
    model, how = tiny_llama(), {"remove": {"mlp": 1}, "store": tmp_path}
    planned(model, **how)
    hook = model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(ValueError, match=r"Expected the output of the dense network to be the same as when the search"):
        planned(model, **how)
    hook.remove()
    planned(model, **how)

    def scaled(by: float) -> Callable[..., torch.Tensor]:
        return lambda model, batch: by * loss(model, batch)

    how |= {"search": "exact", "importance": "cross_entropy"}
    planned(model, loss=scaled(1.0), **how)
    with pytest.raises(ValueError, match=r"the loss of the dense network to be the same as.* Take another fol"):
        planned(model, loss=scaled(2.0), **how)


def test_damaged_results_are_found_anew(tmp_path: Path) -> None:
    model = convs()
    whole = planned(model, remove={"layer": 1}, store=tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    file.write_bytes(b"")
    with pytest.warns(UserWarning, match=rf"{file.name} is damaged \(EOFError\). Its result is found anew"):
        assert same(planned(model, remove={"layer": 1}, store=tmp_path), whole)


def test_no_turned_bit_goes_unnoticed(tmp_path: Path) -> None:
    def kept(compute: Callable[[], Any]) -> Any:
        store = SearchStore(tmp_path)
        store.begin(nn.Identity(), seen={})
        return store.result("scores", (), compute)

    value = ({"a": torch.randn(7), "b": [1, 2.5]}, 3.25)
    kept(lambda: value)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for number in range(0, len(whole), 29):
        turned = bytearray(whole)
        turned[number] ^= 1 << number % 8
        file.write_bytes(turned)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = kept(lambda: "anew")
        if found == "anew":
            assert "is damaged" in str(told[0].message)
        else:
            assert torch.equal(found[0]["a"], value[0]["a"])
            assert (found[0]["b"], found[1]) == (value[0]["b"], value[1])


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(ValueError, match=r"argument store to be a folder .* but .*a_file is a file. Take anot"):
        planned(convs(), remove={"layer": 1}, store=tmp_path / "a_file")
    with pytest.raises(NotADirectoryError, match="Expected to write .* in .*a_file/inside, but the system refuses"):
        planned(convs(), remove={"layer": 1}, store=tmp_path / "a_file" / "inside")
    for other in (3, ""):
        with pytest.raises(TypeError, match=f"Expected argument store to be the path of a folder, but got {other!r}"):
            planned(convs(), remove={"layer": 1}, store=other)


def test_a_folder_with_other_things_is_no_store(tmp_path: Path) -> None:
    for name in ("last.ckpt", "model.pt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"store to be a folder for .* holds last.ckpt, model.pt. Take a folder"):
        planned(convs(), remove={"layer": 1}, store=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_results_go_and_what_else_there_is_stays(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    planned(convs(), remove={"layer": 1}, store=folder)
    (folder / ".cut_off_by_a_kill.new.pt").touch()
    assert results_in(folder) == len(list(folder.iterdir())) - 1
    (folder / "weights.pt").touch()
    delete_results(folder)
    assert [file.name for file in folder.iterdir()] == ["weights.pt"]
    (folder / "weights.pt").unlink()
    delete_results(folder)
    delete_results(folder)
    assert not folder.exists()
