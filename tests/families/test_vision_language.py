"""Vision-language models: the language part is pruned on texts with images, and stays a standard checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.depth.seeing import IMAGE, SEEING, Seeing
from cases.models.cached import handing_on, numbers
from cases.sampling import one_in
from cases.support.checks import others
from torch import Tensor, nn

from prunerecover import (
    Budget,
    Plan,
    apply_plan,
    load_pruned,
    plan_depth,
    plan_pruning,
    plan_width,
    save_pruned,
)
from prunerecover.families.describe import describe
from prunerecover.plan.edits import Config, Remove
from prunerecover.surgery.apply_edits import undo
from prunerecover.surgery.merging import merge

FAMILIES = ("llava", "paligemma", "qwen2_5_vl", "smolvlm")
RELATED = tuple(SEEING.keys() - {*FAMILIES})
OPENED = """
import sys
import torch, transformers
for folder in sys.argv[1:]:
    batch, logits, name = torch.load(f"{folder}/../seen.pt")
    model = getattr(transformers, name).from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, logits, atol=1e-5, rtol=0)
assert "prunerecover" not in sys.modules
"""


def batches(case: Seeing) -> list[dict[str, Tensor]]:
    """Sixteen texts with images."""
    return [case.batch(size=4, seed=seed) for seed in range(4)]


def planned(model: nn.Module, case: Seeing, kind: str, number: int) -> Plan:
    """A plan that removes the block of this number, or a branch, without a replacement."""
    others = "".join(str(n) for n in range(4) if n != number)
    ignore = [f"*.[{others}]" if kind == "block" else f"*.[{others}].*"]
    settings: Any = {"batches": batches(case), "ignore": ignore, "search": "one_shot", "replace": "zero"}
    return plan_depth(model, remove={kind: 1}, **settings)


@torch.no_grad()
def output(model: nn.Module, case: Seeing) -> Tensor:
    return model(**case.batch(size=3, seed=9)).logits  # type: ignore[no-any-return]


def generated(model: Any, batch: dict[str, Tensor], use_cache: bool) -> Tensor:
    """Greedy continuation, logits `(steps, B, V)`."""
    length: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "suppress_tokens": [IMAGE]}
    settings = {"do_sample": False, "use_cache": use_cache, "output_logits": True, "return_dict_in_generate": True}
    return torch.stack(model.generate(**batch, **length, **settings).logits)


def assert_cache_is_exact(model: nn.Module, case: Seeing) -> None:
    for batch in (case.batch(), case.texts()):
        torch.testing.assert_close(generated(model, batch, True), generated(model, batch, False), atol=1e-4, rtol=1e-4)


def returning_zero(_: nn.Module, __: Any, output: Any) -> Any:
    """Hook for a branch that adds nothing."""
    return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)


@pytest.mark.parametrize("name", [*FAMILIES, *one_in(len(RELATED), sorted(RELATED))])
def test_block_of_the_language_part_goes(name: str, tmp_path: Path) -> None:
    case = SEEING[name]
    model, oracle = case.build(), case.build()
    plan = planned(model, case, "block", 1)
    assert [type(edit) for edit in plan.edits] == [Remove, Config]
    applied = apply_plan(model, plan)
    left = output(model, case)
    oracle.get_submodule(plan.removed["block"][0]).register_forward_hook(handing_on, with_kwargs=True)
    torch.testing.assert_close(left, output(oracle, case), atol=1e-5, rtol=0)
    assert_cache_is_exact(model, case)
    folder = save_pruned(model, plan, tmp_path / "pruned")
    again: Any = type(model).from_pretrained(folder)  # type: ignore[attr-defined]
    assert again.config.get_text_config().num_hidden_layers == 3
    assert again.config.vision_config.num_hidden_layers == 2
    assert numbers(again) == numbers(model)
    torch.testing.assert_close(output(again.eval(), case), left, atol=1e-5, rtol=0)
    assert torch.equal(output(load_pruned(folder), case), left)
    undo(model, applied.journal)
    assert torch.equal(output(model, case), output(case.build(), case))


@pytest.mark.slow
def test_plain_transformers_open_the_folders_in_a_new_process(tmp_path: Path) -> None:
    folders = []
    for name, case in SEEING.items():
        model = case.build()
        plan = plan_depth(model, remove={"block": 1}, batches=batches(case))
        apply_plan(model, plan)
        folders.append(save_pruned(model, plan, tmp_path / name / "pruned"))
        torch.save((case.batch(), model(**case.batch()).logits, type(model).__name__), folders[-1].parent / "seen.pt")
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", OPENED, *map(str, folders)]
    done = subprocess.run(command, env=alone, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(("name", "kind"), one_in(5, [(n, kind) for n in FAMILIES for kind in ("attention", "mlp")]))
def test_branch_of_the_first_block_goes_with_its_place_in_the_cache(name: str, kind: str, tmp_path: Path) -> None:
    case = SEEING[name]
    model, oracle = case.build(), case.build()
    plan = planned(model, case, kind, 0)
    apply_plan(model, plan)
    oracle.get_submodule(plan.removed[kind][0]).register_forward_hook(returning_zero)
    torch.testing.assert_close(output(model, case), output(oracle, case), atol=1e-5, rtol=0)
    assert_cache_is_exact(model, case)
    folder = save_pruned(model, plan, tmp_path / "pruned")
    assert torch.equal(output(load_pruned(folder), case), output(model, case))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seen", [True, False], ids=["images", "texts"])
def test_all_kinds_together(name: str, seen: bool) -> None:
    case = SEEING[name]
    model = case.build()
    examples = batches(case) if seen else [case.texts(size=4, seed=seed) for seed in range(4)]
    apply_plan(model, plan_pruning(model, Budget(params=0.2), batches=examples))
    assert_cache_is_exact(model, case)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [*((name, "neuron") for name in FAMILIES), ("paligemma", "head")])
def test_layers_narrowed_alike_are_a_standard_checkpoint(name: str, kind: str, tmp_path: Path) -> None:
    case = SEEING[name]
    model = case.build(num_key_value_heads=4, head_dim=8)
    alike: Any = {"batches": batches(case), "ignore": others(model, case.batch(), kind), "allocation": "uniform"}
    plan = plan_width(model, Budget(params=0.05), kinds=kind, **alike)
    apply_plan(model, plan)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    again = type(model).from_pretrained(tmp_path).eval()  # type: ignore[attr-defined]
    torch.testing.assert_close(output(again, case), output(model, case), atol=1e-5, rtol=0)


def test_blocks_before_features_of_images_stay() -> None:
    """Qwen3-VL adds features of images behind the first blocks, by number."""
    why = r"adds features of images behind it, by its number\). Remove its attention and its MLP"
    case = SEEING["qwen3_vl"]
    model = case.build()
    assert [bool(block.stays) for block in describe(model).blocks] == [True, False, False, False]
    with pytest.raises(ValueError, match="all 3 of kind block match ignore"):
        planned(model, case, "block", 0)
    for kind in ("attention", "mlp"):
        apply_plan(model, planned(model, case, kind, 0))
    before = output(model, case)
    assert not merge(model).edits
    assert torch.equal(output(model, case), before)
    plan = plan_depth(model, remove={"block": 3}, batches=batches(case), search="one_shot", replace="zero")
    apply_plan(model, plan)
    assert len(describe(model).blocks) == 1
    with pytest.raises(ValueError, match=why):
        plan_depth(model, remove={"block": 1}, batches=batches(case))
