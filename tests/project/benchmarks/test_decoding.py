"""The benchmark of decoding: both modes write the same, and leave the cache as it was."""

from __future__ import annotations

import pytest
import torch

from benchmarks.depth import graph_depth_decode as decode
from benchmarks.depth.graph_depth_decoding import PROMPT, WRITTEN, CompiledDecoding, Decoding

CASE = decode.Case("compiled", "layer", {"layer": 12})


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave steps as they are: what is tested is the cache, not the compiler."""
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)


@pytest.mark.usefixtures("uncompiled")
def test_a_fixed_cache_gives_the_same_logits_as_a_growing_one_however_often() -> None:
    network, prompt = decode.decoder(64), decode.calibration()[:1]
    fixed, growing = CompiledDecoding(network, prompt), Decoding(network, prompt)
    first = growing(decode.TOKEN)
    for decoding in (fixed, fixed, growing):
        torch.testing.assert_close(decoding(decode.TOKEN), first)


@pytest.mark.usefixtures("uncompiled")
def test_a_step_reads_weights_and_cache() -> None:
    network, prompt = decode.decoder(64), decode.calibration()[:1]
    weights = 4 * (8 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 64 + 1000 * 64)
    for mode, tokens in ((Decoding, PROMPT), (CompiledDecoding, PROMPT + WRITTEN)):
        assert decode.step_bytes(mode(network, prompt)) == weights + 4 * 8 * 2 * tokens * 64


@pytest.mark.usefixtures("uncompiled")
def test_decoding_that_differs_from_eager_mode_is_refused() -> None:
    prompt = decode.calibration()[:1]
    decoding = CompiledDecoding(decode.decoder(64), prompt)
    with torch.inference_mode():
        next(iter(decoding.cache.values())).layers[0].values.add_(1)
    with pytest.raises(RuntimeError, match="Expected the same logits as in eager mode"):
        decode.check_mode(decoding, prompt)


def test_words_name_modes_sizes_and_removals() -> None:
    assert decode.asked(1024, CASE, ())
    assert decode.asked(1024, CASE, ("compiled", "1024", "12 layers", "6 layers"))
    for other in ("eager", "2048", "6 layers"):
        assert not decode.asked(1024, CASE, (other,))


def test_tables_are_per_mode() -> None:
    row = {"model": decode.MODEL.format(1024), "method": "12 layers", "unit": "layer", "params_share": 0.5}
    figures = dict.fromkeys(("bytes_share", "value", "ci_low", "ci_high", "dense_ms", "pruned_ms"), 1.0)
    lines = decode.section([{**row, **figures, "mode": mode} for mode in decode.MODES])
    assert [line for line in lines if line.startswith("#")] == ["### Eager", "### Compiled"]
    assert sum("12 layers" in line for line in lines) == 2
