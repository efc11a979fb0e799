"""A Nemotron-NAS folder of an uneven decoder has the network's outputs, by Llama's own modules and in mlx-lm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cases.serving.nas import NasNetwork
from cases.serving.uneven import UNEVEN, byte_tokenizer, narrow, tokens, uneven
from torch import Tensor, nn
from transformers import AutoTokenizer

from prunerecover import export
from prunerecover.refusal import Refusal


def written(model: nn.Module, folder: Path) -> Path:
    return export(model, folder / "served", format="nemotron-nas", tokenizer=byte_tokenizer())


def logits(model: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=given).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", UNEVEN)
def test_the_folder_computes_what_the_network_does(name: str, tmp_path: Path) -> None:
    model, given = uneven(name), tokens()
    found = NasNetwork(written(model, tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(found(given), logits(model, given), atol=1e-4, rtol=1e-4)
    assert found.config.rope_parameters == model.config.rope_parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", UNEVEN)
def test_mlx_computes_what_the_network_does(name: str, tmp_path: Path) -> None:
    mlx, utils = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_lm.utils")
    model, given = uneven(name), tokens()
    mlx.set_default_device(mlx.cpu)
    served, _ = utils.load_model(written(model, tmp_path), strict=True)
    found = torch.tensor(served(mlx.array(given.numpy())).tolist())
    torch.testing.assert_close(found, logits(model, given), atol=1e-4, rtol=1e-4)


def test_a_layer_states_what_is_there(tmp_path: Path) -> None:
    """Heads of keys stay few where the groups have room for the queries."""
    model = uneven("dense")
    config = json.loads((written(model, tmp_path / "dense") / "config.json").read_text())
    assert [block["attention"]["n_heads_in_group"] for block in config["block_configs"]] == [2, 2, 2, 2]
    model = uneven("no last mlp")
    narrow(model.model.layers[1], 2, 1, 300)
    config = json.loads((written(model, tmp_path / "narrow") / "config.json").read_text())
    told = [(block["attention"]["n_heads_in_group"], block["ffn"]["no_op"]) for block in config["block_configs"]]
    assert told == [(2, False), (4, False), (2, False), (2, True)]
    assert config["mlp_bias"]


def test_weights_keep_their_dtype_and_the_tokenizer_is_there(tmp_path: Path) -> None:
    """In bfloat16 an affine map is as exact as the network: its constants are powers of two."""
    model, given = uneven("maps").bfloat16(), tokens()
    folder = written(model, tmp_path)
    found = NasNetwork(folder)
    with torch.no_grad():
        torch.testing.assert_close(found(given), logits(model.float(), given), atol=1e-4, rtol=1e-4)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert AutoTokenizer.from_pretrained(folder)("the a12").input_ids == byte_tokenizer()("the a12").input_ids


@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (5, 5)])
def test_heads_without_room_are_refused(heads: int, shared: int, tmp_path: Path) -> None:
    model = uneven("dense")
    narrow(model.model.layers[1], heads, shared, 48)
    told = (
        f"room in 4 heads, which fill the hidden size, but one has {heads} queries' and {shared} keys' heads of size 8"
    )
    with pytest.raises(Refusal, match=f"{told}. Write format='gguf'"):
        written(model, tmp_path)
    assert not (tmp_path / "served").exists()
