from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.language import word_tokenizer
from cases.models.routed_language import encoding, questions, sets_of
from cases.models.tiny import tiny_bert, tiny_llama
from cases.sampling import one_in

from prunerecover.language.likelihood import Encoding
from prunerecover.language.questions import Question
from prunerecover.model.hooks import recording
from prunerecover.recipes.tasks.route_picker import held_out, prompt_features, train_router
from prunerecover.routing.routed_causal_lm import RoutedCausalLM
from prunerecover.routing.router import EncoderRouter, PrefixRouter


@pytest.fixture(scope="module")
def llama() -> torch.nn.Module:
    return tiny_llama(num_hidden_layers=6)


def test_features_are_mean_and_last_state_behind_the_prefix(llama: torch.nn.Module) -> None:
    router, asked = PrefixRouter(32, 4), questions(5)
    found = prompt_features(router, llama, asked, encoding())
    for question, features in zip(asked, found, strict=True):
        ids = torch.tensor([encoding().prompt(question.prompt)])
        with recording({"block": llama.get_submodule("model.layers.1")}) as seen, torch.no_grad():
            llama(input_ids=ids)
        states = seen["block.out"][0]
        torch.testing.assert_close(features, torch.cat([states.mean(0), states[-1]]), atol=1e-5, rtol=1e-5)


def test_the_router_never_sees_an_answer(llama: torch.nn.Module) -> None:
    router, asked = PrefixRouter(32, 4), questions(5)
    others = [Question(q.prompt, ("w59 w58", "w57"), 1) for q in asked]
    assert torch.equal(
        prompt_features(router, llama, asked, encoding()), prompt_features(router, llama, others, encoding())
    )


def test_no_question_is_in_both_parts() -> None:
    asked = questions(40) * 3
    apart = held_out(asked, 0.3)
    learnt = {q.prompt for q, out in zip(asked, apart, strict=True) if not out}
    judged = {q.prompt for q, out in zip(asked, apart, strict=True) if out}
    assert judged
    assert not learnt & judged
    spaced = [Question(f"{q.prompt} ", q.choices, q.answer) for q in asked]
    assert torch.equal(held_out(spaced, 0.3), apart)


def clusters(shuffled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of two kinds of prompts, each better by 0.5 under a different set."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.arange(1600) % 2
    features = torch.randn(1600, 32, generator=generator)
    features[:, 0] += 4 * kind
    likelihoods = torch.randn(1600, 3, generator=generator) * 0.3
    likelihoods[:, 1] += kind - 0.5
    likelihoods[:, 2] -= kind - 0.5
    if shuffled:
        likelihoods = likelihoods[torch.randperm(1600, generator=generator)]
    return features, likelihoods


def gain_of(shuffled: bool, loss: str) -> float:
    """Train on 800, choose by 400, and return the gain on 400 others."""
    features, likelihoods = clusters(shuffled)
    apart = torch.arange(1200) >= 800
    how: dict[str, Any] = {"objective": loss, "epochs": 10, "enable_progress_bar": False}
    router = train_router(PrefixRouter(16, 3), features[:1200], likelihoods[:1200], apart, **how)
    with torch.no_grad():
        picked = router(features[1200:]).argmax(1)
    fresh = likelihoods[1200:]
    return float((fresh.gather(1, picked[:, None])[:, 0] - fresh[:, 0]).mean())


@pytest.mark.slow
@pytest.mark.parametrize("loss", one_in(2, ["soft_cross_entropy", "cross_entropy", "mse"]))
def test_a_router_learns_which_set_serves_which_prompts_and_nothing_from_shuffled_labels(loss: str) -> None:
    assert gain_of(False, loss) > 0.4
    assert abs(gain_of(True, loss)) < 0.1


def test_routers_that_cannot_be(llama: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match="Expected two sets or more to choose from, but got 1"):
        PrefixRouter(16, 1)
    with pytest.raises(ValueError, match="Expected one block or more for the prompt to run through, but got 0"):
        PrefixRouter(16, 2, blocks=0)
    with pytest.raises(ValueError, match="Expected a model of 7 blocks or more, .* but this LlamaForCausalLM has 6"):
        prompt_features(PrefixRouter(32, 2, blocks=7), llama, questions(2), encoding())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "luck"}, "one of soft_cross_entropy, cross_entropy, mse, but got 'luck'"),
        ({"apart": torch.arange(7) < 2}, "held-out marks of the same questions"),
        ({"apart": torch.arange(8) < 8}, "Expected questions to train on and others to choose by, but 8 of 8"),
        ({"apart": torch.arange(8) < 0}, "but 0 of 8 are held out"),
        ({"likelihoods": torch.zeros(8, 3)}, "Expected likelihoods under the router's 2 sets, but got 3"),
        ({"likelihoods": torch.full((8, 2), -torch.inf)}, "finite likelihoods, but 8 of 8 questions have others"),
        ({"static": 2}, "Expected the static set's number from 0 to 1, but got 2"),
        ({"epochs": 0}, "Expected one epoch or more, but got 0"),
    ],
)
def test_training_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    usual = {"features": torch.zeros(8, 8), "likelihoods": torch.zeros(8, 2), "apart": torch.arange(8) < 2}
    with pytest.raises(ValueError, match=message):
        train_router(PrefixRouter(4, 2), **{**usual, **changes})


def test_training_leaves_the_random_state() -> None:
    router, before = PrefixRouter(4, 2), torch.get_rng_state()
    how = {"epochs": 1, "enable_progress_bar": False}
    train_router(router, torch.zeros(8, 8), torch.zeros(8, 2), torch.arange(8) < 2, **how)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)


# Text encoders


@pytest.fixture
def encoder(tmp_path: Path) -> EncoderRouter:
    tiny_bert().save_pretrained(tmp_path)  # type: ignore[operator]
    word_tokenizer(eos_token="</s>").save_pretrained(tmp_path)  # no token for padding
    torch.manual_seed(0)
    return EncoderRouter(str(tmp_path), 4).eval()


def test_padding_does_not_change_what_an_encoder_reads(encoder: EncoderRouter, llama: torch.nn.Module) -> None:
    texts = ["w5", "w6 w7 w8", "w9 w10"]
    together = encoder(encoder.features(llama, [[]] * 3, texts))
    alone = torch.cat([encoder(encoder.features(llama, [[]], [text])) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_an_encoder_learns_from_the_text_that_it_is_asked_with(encoder: EncoderRouter, llama: torch.nn.Module) -> None:
    tokenizer = word_tokenizer(eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}w3 {{ m['content'] }} w4{% endfor %}"
    chat, asked, heard = Encoding(tokenizer, 64, chat=True), questions(3), list[str]()

    def listen(model: torch.nn.Module, prompts: Any, texts: Any = ()) -> torch.Tensor:
        heard.extend(texts)
        return EncoderRouter.features(encoder, model, prompts, texts)

    encoder.features = listen  # type: ignore[method-assign]
    prompt_features(encoder, llama, asked, chat)
    routed = RoutedCausalLM(llama, sets_of(llama), encoder, tokenizer=tokenizer)
    for question in asked:
        routed.route(torch.tensor([chat.prompt(question.prompt)]))
    assert heard[:3] == heard[3:]


def test_an_encoder_needs_text(encoder: EncoderRouter, llama: torch.nn.Module) -> None:
    routed = RoutedCausalLM(llama, sets_of(llama), encoder)
    with pytest.raises(ValueError, match="Expected the text of each of 2 prompts, which this router reads, but got 0"):
        routed.route(torch.ones(2, 3, dtype=torch.long))
