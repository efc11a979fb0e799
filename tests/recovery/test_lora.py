"""Adapters on plain networks: neither injecting nor merging changes an output, and merging leaves no trace."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.models.decoders import EXPERTS, Decoder
from cases.models.tiny import BUILD, tiny_gpt2, tiny_images, tiny_inputs, tiny_llama, tiny_timm
from cases.tiny_plans import tiny_plan
from peft.tuners.lora import LoraLayer, LoraModel
from torch import nn
from transformers import MambaConfig, MambaForCausalLM

from prunerecover import apply_plan, update_optimizer
from prunerecover.model.hashing import tensors_hash
from prunerecover.model.paths import get_module
from prunerecover.recovery.lora import (
    Adapters,
    LoraSettings,
    has_adapters,
    inject_adapters,
    merge_adapters,
    plan_adapters,
)
from prunerecover.recovery.lora_targets import adaptable

SETTINGS = LoraSettings(rank=3, alpha=6, dropout=0.1)


def output_of(name, network):
    with torch.no_grad():
        return network(tiny_images()) if name == "timm" else network(**tiny_inputs(name)).logits


def stir(applied):
    """Give the adapters nonzero values."""
    generator = torch.Generator().manual_seed(1)
    for parameter, _ in applied.added.values():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))


MOE = {"num_experts": 4, "mlp_only_layers": [0]}
GLM = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
NETWORKS = {
    **{name: BUILD[name] for name in ("timm", "gpt2", "bert")},
    # peft knows mixtures of experts, and other models, by their type
    **{name: Decoder(name, "", {**EXPERTS, **more}).build for name, more in (("Qwen3Moe", MOE), ("Glm4Moe", GLM))},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_laid_equals_plain_and_folded_equals_laid(name):
    network = NETWORKS[name]()
    before, random, plain = tensors_hash(network), torch.get_rng_state(), output_of(name, network)
    attributes = set(vars(network))
    adapters = plan_adapters(network, SETTINGS)
    assert tensors_hash(network) == before
    applied = inject_adapters(network, adapters)
    assert {path for path, module in network.named_modules() if isinstance(module, LoraLayer)} == set(adapters.modules)
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module.training for module in network.modules())
    assert torch.equal(output_of(name, network), plain)
    stir(applied)
    injected = output_of(name, network)
    assert (injected - plain).abs().max() > 0.1
    merge_adapters(network, adapters)
    assert (output_of(name, network) - injected).abs().max() < 1e-5 * injected.abs().max()
    assert tensors_hash(network) == before
    assert set(vars(network)) == attributes
    assert not has_adapters(network)
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(("dtype", "adapted"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_folding_is_the_sum_of_weight_and_product(dtype, adapted):
    """By the formula, rounded once; adapters of weights in half precision are float32, as in peft."""
    network = tiny_timm().to(dtype)
    adapters = plan_adapters(network, SETTINGS)
    applied = inject_adapters(network, adapters)
    stir(applied)
    weight = network.blocks[0].mlp.fc1.base_layer.weight.detach().clone()
    a, b = (applied.added[f"blocks.0.mlp.fc1.lora_{x}.default.weight"][0].detach() for x in "AB")
    assert {p.dtype for p, _ in applied.added.values()} == {adapted}
    assert network(tiny_images().to(dtype)).dtype == dtype
    merge_adapters(network, adapters)
    exact = (weight.to(adapted) + 2.0 * b @ a).to(dtype)
    torch.testing.assert_close(network.blocks[0].mlp.fc1.weight.detach(), exact, rtol=1e-12, atol=1e-12)
    assert {p.dtype for p in network.parameters()} == {dtype}


def test_convolutions():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2))
    assert adaptable(network) == ["0", "3"]
    adapters = plan_adapters(network, LoraSettings(rank=2, alpha=4, target_modules=("0",)))
    assert set(adapters.frozen) == {"0.weight", "1.weight"}
    stir(inject_adapters(network, adapters))
    injected = output_of("timm", network)
    merge_adapters(network, adapters)
    torch.testing.assert_close(output_of("timm", network), injected)


def test_what_cannot_be_folded_is_not_adapted():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    tied = nn.Linear(4, 4)
    twin = nn.Linear(4, 4)
    twin.weight = tied.weight
    assert adaptable(nn.Sequential(Doubled(4, 4), tied, twin, nn.Linear(4, 2), nn.Conv2d(2, 2, 3, dilation=2))) == ["3"]


def test_tied_heads_rest_and_others_train():
    """A head tied to the embedding is frozen with the embedding."""
    for network, trains in ((tiny_gpt2(), False), (tiny_llama(), True)):
        assert (network.lm_head.weight is network.get_input_embeddings().weight) is not trains
        inject_adapters(network, plan_adapters(network, SETTINGS))
        assert network.lm_head.weight.requires_grad is trains
        assert network.get_input_embeddings().weight.requires_grad is False


def test_patterns_are_paths_or_their_ends():
    network = tiny_timm()
    for pattern, expected in (
        ("qkv", [f"blocks.{i}.attn.qkv" for i in range(4)]),
        ("blocks.1.mlp.fc?", ["blocks.1.mlp.fc1", "blocks.1.mlp.fc2"]),
        ("head", ["head"]),
    ):
        adapters = plan_adapters(network, SETTINGS.model_copy(update={"target_modules": (pattern,)}))
        assert list(adapters.modules) == expected
    assert "head.weight" in adapters.frozen  # named, so adapted


def test_in_a_plain_loop_after_surgery():
    """Optimizers follow by `update_optimizer`, there and back."""
    network = tiny_timm()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    update_optimizer(optimizer, apply_plan(network, tiny_plan(network, (2, "attention", "zero"))))
    adapters = plan_adapters(network, SETTINGS)
    assert len(adapters.modules) == 4 * 4 - 2
    update_optimizer(optimizer, inject_adapters(network, adapters))
    assert set(optimizer.param_groups[0]["params"]) == {p for p in network.parameters() if p.requires_grad}
    frozen = copy.deepcopy(network.blocks[1].mlp.fc1.base_layer.weight)
    network(tiny_images()).square().sum().backward()
    optimizer.step()
    assert torch.equal(network.blocks[1].mlp.fc1.base_layer.weight, frozen)
    injected = output_of("timm", network)
    update_optimizer(optimizer, merge_adapters(network, adapters))
    torch.testing.assert_close(output_of("timm", network), injected, rtol=1e-4, atol=1e-4)
    held = set(optimizer.param_groups[0]["params"])
    assert held >= {get_module(network, path).weight for path in adapters.modules}
    assert held <= set(network.parameters())


def test_a_description_survives_a_file_and_nothing_else_is_one():
    adapters = plan_adapters(tiny_timm(), SETTINGS)
    assert Adapters.from_dict(adapters.to_dict()) == adapters
    with pytest.raises(ValueError, match=r"Expected a description of adapters, but .* is wrong: Field required"):
        Adapters.from_dict({"rank": 2})


def test_adapters_go_where_they_were_planned_and_off_where_they_are():
    network, other = tiny_timm(), tiny_timm(depth=3)
    adapters = plan_adapters(network, SETTINGS)
    with pytest.raises(ValueError, match=r"Expected an adapter at 'blocks.0.attn.qkv' .* but it is plain"):
        merge_adapters(network, adapters)
    inject_adapters(network, adapters)
    with pytest.raises(ValueError, match=r"adapters were planned for, but this VisionTransformer has"):
        inject_adapters(network, adapters)
    with pytest.raises(ValueError, match=r"VisionTransformer has no plain 'blocks.3.attn.qkv'. Was it pruned since"):
        inject_adapters(other, adapters)
    assert not has_adapters(other)


def test_weights_that_fused_kernels_read_are_not_adapted():
    """Mamba hands the weights of the projections to a kernel, past any adapters."""
    shape = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    network = MambaForCausalLM(MambaConfig(**shape, tie_word_embeddings=False))
    adapters = plan_adapters(network, SETTINGS)
    assert list(adapters.modules) == [f"backbone.layers.{i}.mixer.in_proj" for i in range(2)]
    inject_adapters(network, adapters)


def test_what_breaks_off_injecting_leaves_the_network_as_it_was(monkeypatch):
    network, made = tiny_llama(), list[str]()
    adapters, before, modules = plan_adapters(network, SETTINGS), tensors_hash(network), list(network.modules())
    create = LoraModel._create_and_replace

    def full(*arguments, **named):
        made.append(named["current_key"])
        if len(made) == 5:
            raise MemoryError("full")
        create(*arguments, **named)

    monkeypatch.setattr(LoraModel, "_create_and_replace", full)
    with pytest.raises(MemoryError, match="full"):
        inject_adapters(network, adapters)
    assert len(made) == 5
    assert list(network.modules()) == modules
    assert tensors_hash(network) == before
    assert all(p.requires_grad for p in network.parameters())
