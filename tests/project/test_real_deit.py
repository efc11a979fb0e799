"""Real weights and real images, at a size that a laptop runs in a minute; the whole measurements are in benchmarks/."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import timm
import torch

from prunerecover import apply_plan, load_pruned, merge, plan_depth, save_pruned

pytestmark = pytest.mark.data
LAST_THREE = ["blocks.[0-8].*"]  # ignored, to remove the last 3 activations: the specification's example


@pytest.fixture(scope="module")
def deit(data_root: Path):
    """Return a function that loads real DeiT-Tiny."""
    return lambda: timm.create_model(f"local-dir:{data_root}/models/deit_tiny_patch16_224", pretrained=True).eval()


@pytest.fixture(scope="module")
def images(data_root: Path, deit):
    """48 calibration images of tiny_imagenet, and 200 labelled images of imagenet_sample."""
    import pyarrow.parquet as pq
    from PIL import Image

    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(deit()), is_training=False)

    def read(path: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        table = pq.read_table(data_root / "data" / path)
        rows = torch.randperm(table.num_rows, generator=torch.Generator().manual_seed(1))[:n].tolist()
        picked = table.take(rows).to_pylist()
        pixels = [transform(Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")) for row in picked]
        return torch.stack(pixels), torch.tensor([row["label"] for row in picked])

    return read("tiny_imagenet/train.parquet", 48)[0], read("imagenet_sample/validation.parquet", 200)


def top1(model: torch.nn.Module, labelled: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.inference_mode():
        hits = [model(x).argmax(1) == y for x, y in zip(labelled[0].split(50), labelled[1].split(50), strict=True)]
    return 100 * torch.cat(hits).float().mean().item()


def test_calibrated_replacement_keeps_what_identity_loses(deit, images):
    calibrated, identity = deit(), deit()
    three = {"remove": {"activation": 3}, "batches": images[0].split(24), "search": "one_shot", "ignore": LAST_THREE}
    apply_plan(calibrated, plan_depth(calibrated, **three))
    apply_plan(identity, plan_depth(identity, **three, replace="identity"))
    dense = top1(deit(), images[1])
    assert dense > 70
    assert top1(calibrated, images[1]) > dense - 15
    assert top1(identity, images[1]) < 5


@pytest.fixture(scope="module")
def smaller(deit, images, tmp_path_factory) -> Path:
    """The folder of real DeiT-Tiny without two attentions and three activations, merged."""
    model = deit()
    remove = {"attention": 2, "activation": 3}
    plan = plan_depth(model, remove=remove, batches=images[0].split(24), search="one_shot", ignore=LAST_THREE)
    apply_plan(model, plan)
    return save_pruned(model, plan + merge(model), tmp_path_factory.mktemp("smaller") / "pruned")


@pytest.mark.filterwarnings("ignore")
def test_pruned_model_runs_alike_in_onnxruntime(smaller, images, tmp_path):
    import onnxruntime

    model, inputs, path = load_pruned(smaller).eval(), images[1][0][:4], str(tmp_path / "model.onnx")
    torch.onnx.export(model, (inputs[:1],), path, dynamo=True, input_names=["images"], verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        for image in inputs.split(1):
            (logits,) = session.run(None, {"images": image.numpy()})
            assert (torch.from_numpy(logits) - model(image)).abs().max() <= 1e-3
