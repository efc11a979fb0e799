"""CausalLM is the named model: its own loss, perplexity over tokens, and pruned folders for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cases.models.language import documents, llama_folder, write_jsonl
from cases.models.questions import question_rows, write_rows
from cases.models.tiny import VOCABULARY
from cases.trainers import trainer_of
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.text import Perplexity

from prunerecover import load_pruned
from prunerecover.callbacks import DepthPrune, DistillRecover, LoRARecover, PruneReport
from prunerecover.language.accuracy import choice_accuracy, choice_log_likelihoods
from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import question_of
from prunerecover.model.key_values import cache_returned
from prunerecover.recipes.data.language.choice_data import ChoiceData
from prunerecover.recipes.data.language.text_data import TextData
from prunerecover.recipes.tasks.causal_lm import CausalLM

PROMPT = torch.arange(3, 15)[None]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(llama_folder(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def data(tmp_path: Path, own_cache: Path, llama: str) -> TextData:
    for name, sizes in (("train", [20] * 16), ("validation", [30] * 4)):
        write_jsonl(tmp_path / "text" / f"{name}.jsonl", documents(sizes, seed=len(name)))
    return TextData(str(tmp_path / "text"), model=llama, length=16, batch_size=4)


def logits(network: nn.Module) -> Tensor:
    with torch.no_grad():
        return network.eval()(PROMPT).logits  # type: ignore[no-any-return]


def uneven_batches() -> list[dict[str, Tensor]]:
    """Return batches of 3, 1 and 2 sequences, partly padded and masked, and another without labels."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for rows, length, ignored in ((3, 10, 4), (1, 7, 0), (2, 5, 5), (2, 12, 1)):
        ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
        mask, labels = torch.ones_like(ids), ids.clone()
        mask[0, length - ignored :] = 0
        labels[0, length - ignored :] = -100
        if ignored == length:
            labels[:] = -100
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return batches


def test_training_loss_is_the_cross_entropy_of_the_next_token(llama: str) -> None:
    module, batch = CausalLM(llama), uneven_batches()[0]
    scores = module(batch["input_ids"], batch["attention_mask"])[:, :-1]
    expected = F.cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten())
    torch.testing.assert_close(module.training_step(batch, 0), expected)


def test_perplexity_is_torchmetrics_in_a_validation_and_in_a_fit_behind_it(llama: str, tmp_path: Path) -> None:
    """Validation alone is in inference mode, validation in a fit is not: no state carries over between them."""
    module, batches = CausalLM(llama, learning_rate=0.0), uneven_batches()
    first, all_batches = (DataLoader(some, batch_size=None) for some in (batches[:1], batches))  # type: ignore[arg-type]
    oracle = Perplexity(ignore_index=-100)
    with torch.no_grad():
        for batch in batches:
            oracle.update(module(batch["input_ids"], batch["attention_mask"])[:, :-1], batch["labels"][:, 1:])
    wanted = pytest.approx(oracle.compute().item(), rel=1e-5)
    (found,) = trainer_of(tmp_path).validate(module, all_batches, verbose=False)
    assert found["val_perplexity"] == wanted
    runner = trainer_of(tmp_path, epochs=1)
    runner.fit(module, first, all_batches)
    assert runner.callback_metrics["val_perplexity"].item() == wanted


def test_the_network_trains_without_a_cache(llama: str) -> None:
    seen = []
    module = CausalLM(llama)
    module.model.register_forward_hook(lambda _, args, kwargs, output: seen.append(output), with_kwargs=True)
    module.training_step(uneven_batches()[0], 0)
    assert module.model.training
    assert not cache_returned(seen[0])
    assert module.model.config.use_cache  # generation keeps it


def test_weights_are_those_of_the_folder_or_new(llama: str) -> None:
    stored = transformers.AutoModelForCausalLM.from_pretrained(llama)
    assert torch.equal(logits(CausalLM(llama).model), logits(stored))
    new = CausalLM(llama, pretrained=False, model_kwargs={"num_hidden_layers": 2}).model
    assert len(new.model.layers) == 2  # type: ignore[union-attr,arg-type]
    assert not torch.equal(new.lm_head.weight, stored.lm_head.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("auto", torch.float32)])
def test_dtype_is_the_weights(llama: str, pretrained: bool, dtype: Any, expected: torch.dtype) -> None:
    module = CausalLM(llama, pretrained=pretrained, dtype=dtype)
    assert {p.dtype for p in module.model.parameters()} == {expected}


def test_what_is_no_language_model_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", str(tmp_path))
    for name, told in (("no/thing", "no/thing"), ("$EMPTY", ".EMPTY")):
        message = f"Expected '{told}' to be a folder as transformers saves it, or a hub id .* got: .*HF_TOK"
        with pytest.raises(ValueError, match=message):
            CausalLM(name)
    with pytest.raises(ValueError, match="Expected a model or tokenizer as transformers saves it at .*/none"):
        CausalLM(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="Expected dtype to be one of float32, bfloat16, float16, auto, but got 'fp"):
        CausalLM("no/thing", dtype="fp32")  # type: ignore[arg-type]


def test_prediction_is_the_likeliest_next_token(llama: str) -> None:
    module = CausalLM(llama)
    assert torch.equal(module.predict_step({"input_ids": PROMPT}, 0), logits(module.model).argmax(-1))


@pytest.mark.slow
def test_pruned_and_recovered_llama_opens_in_transformers(llama: str, tmp_path: Path, data: TextData) -> None:
    prune = DepthPrune(remove={"block": 1}, schedule={"start": 0}, calibration=8)
    best = ModelCheckpoint(monitor="val_perplexity", save_last=True)
    module = CausalLM(llama)
    runner = trainer_of(tmp_path, prune, LoRARecover(rank=2), PruneReport(), DistillRecover(), best)
    runner.fit(module, data)
    (folder,) = tmp_path.rglob("pruned")
    opened, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert len(opened.model.layers) == 3
    assert torch.equal(logits(opened), logits(load_pruned(folder)))
    torch.testing.assert_close(logits(opened), logits(module.model), rtol=1e-4, atol=1e-4)
    (scored,) = runner.validate(CausalLM(llama), data, ckpt_path=best.last_model_path, verbose=False)
    assert scored["val_perplexity"] == pytest.approx(runner.callback_metrics["val_perplexity"].item())


@pytest.mark.data
def test_real_llama_is_pruned_and_recovered_on_real_stories(data_root: Path, tmp_path: Path, own_cache: Path) -> None:
    """stories260K on 200 documents of TinyStories."""
    model = str(data_root / "models" / "stories260K")
    text = {"length": 128, "batch_size": 8, "limit_train": 200, "limit_val": 40}
    data = TextData(str(data_root / "data" / "tinystories"), model=model, **text)
    module = CausalLM(model, learning_rate=1e-3)
    quiet = {"epochs": 1, "limit_train_batches": 20}
    (dense,) = trainer_of(tmp_path).validate(module, data, verbose=False)
    prune = DepthPrune(remove={"block": 1}, schedule={"start": 0}, calibration=16)
    runner = trainer_of(tmp_path, prune, LoRARecover(rank=8), **quiet)
    runner.fit(module, data)
    recovered = runner.callback_metrics["val_perplexity"].item()
    assert 1 < dense["val_perplexity"] < recovered < 3 * dense["val_perplexity"]
    (folder,) = tmp_path.rglob("pruned")
    assert len(transformers.AutoModelForCausalLM.from_pretrained(folder).model.layers) == 4


# Multiple choice.


ROWS = question_rows(11)
QUESTIONS = [question_of(row) for row in ROWS]


def metrics_by_hand(module: CausalLM, llama: str) -> dict[str, float]:
    encoding = Encoding(transformers.AutoTokenizer.from_pretrained(llama), context=64)
    losses = []
    for question, logs in zip(QUESTIONS, choice_log_likelihoods(module.model, QUESTIONS, encoding), strict=True):
        tokens = len(encoding.with_answer(question.prompt, question.right)[1])
        losses.append(-float(logs[question.answer]) / tokens)
    return {**choice_accuracy(module.model, QUESTIONS, encoding), "loss": sum(losses) / len(losses)}


@pytest.mark.parametrize(("loop", "prefix"), [("validate", "val"), ("test", "test")])
def test_metrics_are_of_the_functions(llama: str, tmp_path: Path, own_cache: Path, loop: str, prefix: str) -> None:
    """Trained on right answers, scored as `choice_accuracy`, each question once."""
    write_rows(tmp_path / "q" / "train.jsonl", question_rows(24))
    write_rows(tmp_path / "q" / "validation.jsonl", ROWS)
    module, data = CausalLM(llama), ChoiceData(str(tmp_path / "q"), model=llama, batch_size=4)
    expected = metrics_by_hand(module, llama)
    (found,) = getattr(trainer_of(tmp_path), loop)(module, data, verbose=False)
    assert found == pytest.approx({f"{prefix}_{name}": value for name, value in expected.items()}, abs=1e-5)
