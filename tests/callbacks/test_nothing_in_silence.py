"""What would go wrong without a sign: distillation that never happens, a module left dense, a copy not written."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cases.models.habits import Plain, dataset
from cases.paths import TESTS
from cases.trainers import fit, prune

from prunerecover import Budget, apply_plan, load_pruned, plan_depth
from prunerecover.callbacks import DepthPrune, DistillRecover

NOW = {"remove": {"attention": 1}, "schedule": {"start": 0}}


class Parts(Plain):
    """Calls parts of its network, never the whole."""

    def loss(self, batch):
        return self.net.head(self.net.forward_features(batch[0]).mean(1)).square().mean()


def test_distillation_that_no_step_listens_to(tmp_path):
    module = Parts()
    plan = plan_depth(module.net, remove={"attention": 1}, batches=[dataset().tensors[0]], replace="zero")
    with pytest.warns(UserWarning, match=r"Parts.training_step to call the network at 'net' .* nothing is distilled"):
        fit(tmp_path, module, DepthPrune(plan=plan), DistillRecover(), epochs=1)


def test_distillation_without_a_surgery(tmp_path):
    module = Plain()
    apply_plan(module.net, plan_depth(module.net, remove={"attention": 1}, batches=[dataset().tensors[0]]))
    with pytest.warns(UserWarning, match=r"nothing is distilled. Pass DistillRecover\(teacher=...\)"):
        fit(tmp_path, module, DistillRecover(), epochs=1)


def test_distillation_as_usual_warns_of_nothing(tmp_path, recwarn):
    fit(tmp_path, Plain(), prune(), DistillRecover())
    old = (FutureWarning, DeprecationWarning)  # in Lightning's own code, about which users can do nothing
    assert not [w for w in recwarn if "distilled" in str(w.message) or issubclass(w.category, old)]


def test_merged_copy_leaves_the_files_of_others_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / "pruned").mkdir(parents=True)
    (folder / "pruned" / "model.onnx").write_text("mine")
    with pytest.warns(UserWarning, match=r"or somebody else has put there. .*copy of this run is at .*pruned-v1"):
        fit(tmp_path, Plain(), prune(merge="copy", **NOW), epochs=1)
    assert (folder / "pruned" / "model.onnx").read_text() == "mine"
    assert load_pruned(folder / "pruned-v1")


FORKED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cases.models.habits import Plain, loader
from cases.trainers import fit, prune
callback = prune(remove={"attention": 1}, schedule={"start": 0})
fit(sys.argv[2], Plain(), callback, epochs=1, strategy="ddp_fork", devices=1)
"""


@pytest.mark.slow
def test_forked_fit_says_where_the_pruned_model_is(tmp_path):
    """Lightning brings the weights back with strict=False, so the module would be dense and partly trained."""
    command = [sys.executable, "-c", FORKED, str(TESTS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the module in the process that called fit stays dense" in done.stderr
    assert f"Go on from {tmp_path}" in done.stderr


@pytest.mark.parametrize("arguments", [{"ratio": 0.3}, {"remove": 3}, {"remove": ["attention"]}])
def test_budget_without_kinds(arguments):
    with pytest.raises(TypeError, match=r"as numbers per kind, such as \{\"attention\": 1\}, but got"):
        Budget(**arguments)


def test_units_in_the_place_of_a_budget():
    with pytest.raises(TypeError, match="Expected argument budget to be a Budget, but got dict. Use remove="):
        DepthPrune({"attention": 2}, schedule={"every": 1, "step": 1})
