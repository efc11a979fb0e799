"""Every segmenter gives a score per class and pixel, learns, loses units in width, and is opened by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.sampling import one_in
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.cost.macs import count_macs
from prunerecover.recipes.networks.segmentation_networks import build_segmenter, scores_of

SIZE = (32, 64)
STAGES = ["stage1", "stage2", "stage3", "stage4"]
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4}
NETWORKS: dict[str, dict[str, Any]] = {
    "segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "decoder_hidden_size": 16},
    "upernet": {
        "backbone_config": {**RESNET, "layer_type": "basic", "out_features": STAGES},
        "hidden_size": 16,
        "use_auxiliary_head": False,
    },
    "deit_tiny_patch16_224": {"embed_dim": 16, "depth": 2, "num_heads": 2},
    "resnet18": {"channels": (8, 8, 16, 16), "layers": (1, 1, 1, 1)},
    "swin_tiny_patch4_window7_224": {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)},
    "lraspp_mobilenet_v3_large": {},
}


def built(name: str, classes: int = 5) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_segmenter(name, classes, False, SIZE, dict(NETWORKS.get(name, {}))).eval()


def test_scores_of_a_vision_transformer_are_a_linear_map_of_its_patch_tokens() -> None:
    network: Any = built("deit_tiny_patch16_224", 3)
    images = torch.randn(2, 3, *SIZE)
    tokens = network.backbone.forward_features(images)[:, 1:]
    by_patch = torch.einsum("ntd,cd->nct", tokens, network.head.weight) + network.head.bias[:, None]
    expected = F.interpolate(by_patch.reshape(2, 3, 2, 4), SIZE, mode="bilinear")
    torch.testing.assert_close(network(images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, NETWORKS))
def test_a_fifth_of_each_network_goes(name: str) -> None:
    network, images = built(name), torch.randn(2, 3, *SIZE)
    target = torch.randint(5, (2, *SIZE))
    assert scores_of(network(images), SIZE).shape == (2, 5, *SIZE)
    before = count_macs(network, images)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(scores_of(model(batch[0]), SIZE), batch[1])

    apply_plan(network, plan_width(network, Budget(macs=0.2), batches=[(images, target)], loss=loss))
    assert count_macs(network, images) / before == pytest.approx(0.8, abs=0.02)
    assert scores_of(network(images), SIZE).shape == (2, 5, *SIZE)


def test_deeplab_is_known_by_its_name() -> None:
    assert type(built("deeplabv3_mobilenet_v3_large")).__name__ == "DeepLabV3"


def test_folder_of_transformers_is_opened_with_a_head_for_the_classes(tmp_path: Path) -> None:
    trained = built("segformer")
    trained.save_pretrained(tmp_path / "mine")  # type: ignore[operator]
    again = build_segmenter(str(tmp_path / "mine"), 5, True, SIZE, {}).eval()
    images = torch.randn(1, 3, *SIZE)
    assert torch.equal(again(images).logits, trained(images).logits)
    other = build_segmenter(str(tmp_path / "mine"), 7, True, SIZE, {})
    assert scores_of(other(images), SIZE).shape == (1, 7, *SIZE)
    kept = "decode_head.linear_projections.0.proj.weight"
    name = kept if kept in trained.state_dict() else "decode_head.linear_c.0.proj.weight"
    assert torch.equal(other.state_dict()[name], trained.state_dict()[name])


@pytest.mark.parametrize("name", ["deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"])
def test_trained_networks_of_torchvision_get_a_layer_for_the_classes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import models

    trained = models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
    monkeypatch.setattr(models, "get_model", lambda *args, **kwargs: trained)
    network = build_segmenter(name, 5, True, SIZE, {}).eval()
    assert scores_of(network(torch.randn(1, 3, *SIZE)), SIZE).shape == (1, 5, *SIZE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18x", "'resnet18x' cannot be made as one: Unknown model"),
        ("bert", "semantic segmentation, but 'bert' is a bert. Try segformer"),
        ("nvidia/segformer-b0", "hub id that can be reached, but got.*give the path of a copy"),
        ("/no/such/folder", "a model at /no/such/folder, but nothing is there"),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(name)


def test_type_of_network_has_no_weights() -> None:
    with pytest.raises(ValueError, match="with pretrained weights, but 'segformer' is only a type of network"):
        build_segmenter("segformer", 5, True, SIZE, {})


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models.get_model", get_model)
    with pytest.raises(ValueError, match="weights of lraspp_mobilenet_v3_large to be reachable.*torch.hub.get_dir"):
        build_segmenter("lraspp_mobilenet_v3_large", 5, True, SIZE, {})
