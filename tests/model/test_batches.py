"""Batches of every form reach the model alike, and logits are found in outputs of every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.engine import PLANNED, batch_of, build, output_of, unchanged
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import T5Config, T5ForConditionalGeneration

from prunerecover import find_groups
from prunerecover.cost.macs import count_macs
from prunerecover.cost.memory import peak_activations
from prunerecover.families.describe import describe
from prunerecover.model import batches as b
from prunerecover.model.batches import ModelInputs, as_inputs
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic, uncompiled
from prunerecover.plan.edits import Remove
from prunerecover.surgery.apply_edits import apply_edits, edited
from prunerecover.surgery.merging import block_removals


def test_batches_of_every_form_reach_the_model_alike() -> None:
    x, y, net = torch.randn(4, 3), torch.zeros(4), nn.Linear(3, 2)
    named, inputs = {"input": x}, ModelInputs((x,))
    for form in (x, (x, y), [x, y], named, inputs, (named, y), (inputs, y)):
        assert torch.equal(b.call(net, as_inputs(form)), net(x))
        assert as_inputs(form).n_samples == 4


@pytest.mark.parametrize("bad", ["text", 3, None, (), ("a", "b")])
def test_other_forms_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="Expected each batch to be a tensor, a tuple"):
        as_inputs(bad)
    with pytest.raises(TypeError, match="at least one tensor of one or more dimensions"):
        _ = ModelInputs((3,)).n_samples


def test_selecting_samples_leaves_unbatched_tensors_alone() -> None:
    inputs = ModelInputs((torch.arange(6).view(3, 2),), {"scale": torch.tensor(2.0), "table": torch.zeros(5), "n": 1})
    chosen = inputs.select(torch.tensor([2, 0]))
    assert chosen.args[0].tolist() == [[4, 5], [0, 1]]
    assert chosen.kwargs["table"].shape == (5,)
    assert chosen.kwargs["n"] == 1


def test_lists_of_images_are_batched_along_the_list() -> None:
    images, targets = [torch.randn(3, 8, 8), torch.randn(3, 6, 8)], [{"boxes": torch.zeros(i, 4)} for i in (2, 5)]
    forms: list[Any] = [(images, targets), (images,), (tuple(images), tuple(targets)), [images]]
    assert all(as_inputs(form).args[0][1] is images[1] for form in forms)
    assert all(as_inputs(form).n_samples == 2 for form in forms)
    assert as_inputs((targets,)).n_samples == 2
    inputs = ModelInputs((images, targets), {"scale": torch.ones(3, 1)})
    assert inputs.n_samples == 2
    assert ModelInputs(([torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)],)).n_samples == 4, "maps of two scales"
    second = inputs.select(torch.tensor([1]))
    assert second.args[0][0] is images[1]
    assert second.args[1] == [targets[1]]
    assert second.kwargs["scale"].shape == (3, 1)


def test_logits_are_found_in_outputs_of_every_form() -> None:
    logits, other = torch.randn(2, 3), torch.zeros(2, dtype=torch.long)
    for output in (logits, {"logits": logits}, {"last_hidden_state": logits}, (other, logits), {"x": logits}):
        assert b.logits_of(output) is logits
    assert torch.equal(b.predictions_of((logits, 3 * logits)), 2 * logits)
    with pytest.raises(TypeError, match="output to hold a floating-point tensor, but got tuple"):
        b.logits_of((other,))


def test_padding_is_cut_from_logits() -> None:
    output = torch.randn(2, 3, 5)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    padded = ModelInputs(kwargs={"input_ids": torch.zeros(2, 3), "attention_mask": mask})
    assert torch.equal(b.without_padding(output, padded), output[mask.bool()])
    assert b.without_padding(output, ModelInputs((output,))) is output
    assert b.without_padding(output[:, 0], padded).shape == (2, 5)


def test_an_encoder_decoder_makes_its_inputs_of_labels() -> None:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 31}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    batch = {"input_ids": torch.randint(1, 31, (2, 5)), "labels": torch.randint(1, 31, (2, 4))}
    assert b.without_labels(batch, model) is batch
    assert "labels" not in b.without_labels({**batch, "decoder_input_ids": batch["labels"]}, model)
    assert "labels" not in b.without_labels(batch)
    assert {group.size for group in find_groups(model, batch, kinds=("neuron",)).groups} == {32}


class Restless(nn.Module):
    """Draws random numbers, and writes, exchanges and adds buffers in every forward pass, in evaluation mode too."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.fail = fail
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("exchanged", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.written += 1
        self.exchanged = torch.rand(2)
        self.register_buffer("added", torch.rand(2))
        if self.fail:
            raise RuntimeError("on purpose")
        return self.norm(self.linear(x)) + torch.rand(())


def test_counting_and_measuring_leave_no_trace() -> None:
    model = Restless().train()
    model.norm.eval()
    with unchanged(model):
        count_macs(model, torch.ones(2, 4))
        peak_activations(model, ModelInputs((torch.ones(2, 4),)), torch.device("cpu"))


def test_failing_forward_leaves_no_trace() -> None:
    model = Restless(fail=True)
    with unchanged(model), pytest.raises(RuntimeError, match="on purpose"):
        count_macs(model, torch.ones(2, 4))
    assert torch.backends.mha.get_fastpath_enabled()


def test_arithmetic_is_ordinary_whatever_the_caller_is_in() -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        with ordinary_arithmetic():
            out = net(x)
            assert out.dtype == torch.float32
            out.sum().backward()
        assert net(x).dtype == torch.bfloat16
        assert torch.is_inference_mode_enabled()
    assert net.weight.grad is not None


def test_buffers_that_were_made_in_inference_mode_are_restored() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.inference_mode(), evaluating(model):
        model.train()
        model(torch.rand(3, 4))
        assert model[1].num_batches_tracked == 1
    assert model[1].num_batches_tracked == 0
    assert torch.equal(model[1].running_mean, torch.zeros(4))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_of_a_checkpointed_part_are_those_of_the_plain_one(reentrant: bool) -> None:
    inner, outer, x = nn.Linear(4, 4), nn.Linear(4, 1), torch.randn(3, 4)
    seen: list[Tensor] = []
    handle = inner.register_forward_hook(lambda _, __, output: seen.append(output))
    with uncompiled():
        checkpointed = outer(checkpoint(inner, x, use_reentrant=reentrant)).sum()
        found = torch.autograd.grad(checkpointed, inner.weight)
    handle.remove()
    assert len(seen) == 1  # it is not run again while gradients flow
    assert torch.equal(found[0], torch.autograd.grad(outer(inner(x)).sum(), inner.weight)[0])
    run = torch.utils.checkpoint.CheckpointFunction
    assert issubclass(run, torch.autograd.Function)  # outside it is PyTorch's own again


def runner_of(model: nn.Module) -> BlockRunner:
    return BlockRunner(model, describe(model).container)


@pytest.mark.parametrize("name", PLANNED)
def test_cached_sweep_equals_naive_sweep(name: str) -> None:
    """Every removal of an attention, judged from stored hidden states, equals a full forward of a pruned model."""
    model, batch = build(name), batch_of(name)
    runner, inputs, hidden = runner_of(model), as_inputs(batch), None
    with torch.no_grad(), unchanged(model):
        for index, block in enumerate(describe(model).blocks):
            assert block.attention is not None
            edit = Remove(unit=block.attention.path, kind="attention")
            naive = deep_copy(model)
            apply_edits(naive, [edit])
            with edited(model, [edit]):
                cached = runner.finish(inputs, index, hidden)
            assert torch.allclose(cached, output_of(naive, batch), atol=1e-5)
            hidden = runner.advance(inputs, index, hidden, index + 1)


@pytest.mark.parametrize("name", PLANNED)
def test_skipped_block_equals_removed_block(name: str) -> None:
    model, batch = build(name), batch_of(name)
    runner, inputs = runner_of(model), as_inputs(batch)
    with torch.no_grad(), unchanged(model):
        hidden = runner.advance(inputs, 0, None, 1)
        for index in (1, 2, 3):
            naive = deep_copy(model)
            apply_edits(naive, block_removals(naive, [index]))
            with runner.skipping([index]):
                cached = runner.finish(inputs, 1, hidden)
            assert torch.allclose(cached, output_of(naive, batch), atol=1e-5)


class Tupled(nn.Module):
    """Block that answers with a tuple, as in GPT-2 and OPT of transformers 5.0."""

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        return (hidden + 1,)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Tupled() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0]
        return x


def test_blocks_that_answer_with_a_tuple_are_skipped_in_kind() -> None:
    """A tensor would be taken for a tuple, its first sample for the batch."""
    runner, inputs = BlockRunner(Stack(), "blocks"), as_inputs(torch.zeros(2, 3))
    middle = runner.advance(inputs, 0, None, 2)
    assert torch.equal(runner.finish(inputs, 2, middle), torch.full((2, 3), 3.0))
    with runner.skipping([0, 1]):
        assert torch.equal(runner.finish(inputs, 0, None), torch.full((2, 3), 1.0))


def test_block_that_is_never_reached_is_an_error() -> None:
    model = build("timm")
    model.forward = lambda x: model.head(model.patch_embed(x).mean(1))
    with pytest.raises(RuntimeError, match="Expected the model to run block 1, but its forward pass never reached it"):
        runner_of(model).advance(as_inputs(batch_of("timm")), 0, None, 1)


def packed(images: list[list[tuple[int, int]]], kinds: bool = True) -> dict[str, Tensor]:
    """A batch as from the processors of Qwen2.5-VL: two tokens per image of each sample, for four rows each."""
    sizes = torch.tensor([(1, *size) for sample in images for size in sample]).reshape(-1, 3)
    tokens = [sum(h * w // 4 for h, w in sample) for sample in images]
    found = {
        "input_ids": torch.arange(6 * len(images)).view(-1, 6),
        "pixel_values": torch.repeat_interleave(torch.arange(len(sizes)), sizes.prod(-1))[:, None].float(),
        "image_grid_thw": sizes,
    }
    return found | {b.KINDS: torch.tensor([[1] * n + [0] * (6 - n) for n in tokens])} if kinds else found


def test_patches_of_all_images_go_with_the_samples_of_their_tokens() -> None:
    inputs = as_inputs(packed([[(2, 2), (2, 4)], [], [(4, 4)]]))
    chosen = inputs.select(torch.tensor([2, 0])).kwargs
    assert chosen["image_grid_thw"].tolist() == [[1, 4, 4], [1, 2, 2], [1, 2, 4]]
    assert chosen["pixel_values"].flatten().tolist() == [2] * 16 + [0] * 4 + [1] * 8
    assert inputs.select(torch.tensor([1])).kwargs.keys() == {"input_ids", b.KINDS}, "a text without images"
    assert not inputs.undivided()
    assert ModelInputs(kwargs=dict(reversed(inputs.kwargs.items()))).n_samples == 3
    images = ModelInputs(kwargs={name: inputs.kwargs[name] for name in ("pixel_values", "image_grid_thw")})
    assert images.n_samples == 3, "without tokens, images are samples"
    assert images.select(torch.tensor([1])).kwargs["pixel_values"].flatten().tolist() == [1] * 8


def test_one_image_per_sample_needs_no_kinds_of_tokens() -> None:
    alone = as_inputs(packed([[(2, 2), (2, 4)]], kinds=False)).select(torch.tensor([0, 0]))
    assert (len(alone.kwargs["pixel_values"]), len(alone.kwargs["image_grid_thw"])) == (24, 4)
    inputs = as_inputs(packed([[(2, 2)], [(2, 4)]], kinds=False))
    assert inputs.select(torch.tensor([1])).kwargs["pixel_values"].flatten().tolist() == [1] * 8
    unknown = as_inputs(packed([[(2, 2)], [(2, 4), (2, 2)]], kinds=False))
    assert "Rows of 'pixel_values', 'image_grid_thw' are no samples" in unknown.undivided()
    rows = as_inputs(packed([[(2, 2)], [(2, 4)]]))
    rows.kwargs["pixel_values"] = rows.kwargs["pixel_values"][1:]
    assert "Rows of 'pixel_values' are no samples" in rows.undivided()
