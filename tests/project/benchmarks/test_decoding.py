"""The benchmark of decoding: both modes write the same, and leave the cache as it was."""

from __future__ import annotations

import pytest
import torch

from benchmarks.depth import graph_depth_decode as decode
from benchmarks.depth.graph_depth_decoding import PROMPT, WRITTEN, CompiledDecoding, Decoding
from benchmarks.runner.rows import Figure, Row


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


def test_attentions_alone_are_not_compiled() -> None:
    compiled = [names for names in decode.NAMES if names["mode"] == "compiled"]
    assert {names["hidden"] for names in compiled} == {512, 1024, 2048}
    assert not [names for names in compiled if decode.COUNTS[names["method"]].keys() == {"attention"}]
    assert len(decode.NAMES) == 4 * len(decode.COUNTS) + len(compiled)


def test_tables_are_per_mode() -> None:
    names = {"subject": "decode", "hidden": 1024, "method": "12 layers"}
    notes = dict.fromkeys(("params_share", "bytes_share", "dense_ms", "pruned_ms"), 0.5)
    rows = [Row.of({**names, "mode": mode}, {"time": Figure(0.6, 0.5, 0.7), **notes}) for mode in decode.MODES]
    lines = decode.TABLES[0].markdown(rows, {})
    assert [line for line in lines if line.startswith("#")] == [
        "## Time follows: decoding, eager",
        "## Time follows: decoding, compiled",
    ]
    assert sum("12 layers" in line for line in lines) == 2
    assert sum("| 60.0% (50.0 to 70.0) | 1.20 (1.00 to 1.40) |" in line for line in lines) == 2
