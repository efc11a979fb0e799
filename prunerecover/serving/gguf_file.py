"""GGUF files of pruned decoders, for llama.cpp and servers based on llama.cpp.

The architecture is `deci`, whose layers may each have a number of heads, of keys' and values' heads and of neurons.
Matrices are in F32, F16 or Q8_0, vectors in F32. Written with the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.paths import unwrap
from prunerecover.refusal import Refusal
from prunerecover.serving.computed import check_computes
from prunerecover.serving.deci_layers import Layer, heads_of, layers_of, neurons_of, tensors_of
from prunerecover.serving.decoder import Decoder, read_decoder
from prunerecover.serving.vocabulary import Vocabulary, vocabulary_of

ARCHITECTURE = "deci"
FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}
GROUP = 32  # values that share a scale in Q8_0
FEW = 1e-6  # relative difference of frequencies that rounding explains


def write_gguf(model: nn.Module, path: Path, tokenizer: Any, matrices: str = "F16") -> None:
    """Write a decoder as GGUF.

    Args:
        model: Network, see `read_decoder`.
        path: File to write.
        tokenizer: Fast tokenizer of transformers: llama.cpp's server needs its vocabulary in the file.
        matrices: Type of the matrices, "F32", "F16" or "Q8_0"; in Q8_0, rows that are no multiple of 32 stay in F16.

    Raises:
        Refusal: If the format cannot state the network or the tokenizer, or F16 cannot hold a weight.
        ModuleNotFoundError: If the package gguf is not installed.
    """
    gguf = _package()
    decoder = read_decoder(model)
    check_computes(decoder, unwrap(model))
    layers = layers_of(decoder)
    vocabulary = vocabulary_of(tokenizer, len(decoder.embeddings))
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _add_shape(writer, decoder, layers)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[matrices]])
    _add_vocabulary(writer, vocabulary)
    for name, tensor in _tensors(decoder, layers):
        _add_tensor(gguf, writer, name, tensor.detach().float().cpu(), matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _package() -> Any:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'Expected the package gguf, but {error.name} is not installed. `pip install "prunerecover[serving]"`.'
        ) from error
    return gguf


def _add_shape(writer: Any, decoder: Decoder, layers: tuple[Layer, ...]) -> None:
    heads = [heads_of(layer) for layer in layers]
    writer.add_name(decoder.name)
    writer.add_context_length(decoder.context)
    writer.add_embedding_length(len(decoder.norm))
    writer.add_block_count(len(layers))
    writer.add_feed_forward_length([neurons_of(layer) for layer in layers])
    writer.add_head_count([queries for queries, _ in heads])
    writer.add_head_count_kv([keys for _, keys in heads])
    writer.add_key_length(decoder.head_size)
    writer.add_value_length(decoder.head_size)
    writer.add_rope_dimension_count(decoder.head_size)
    writer.add_rope_freq_base(decoder.theta)
    writer.add_layer_norm_rms_eps(decoder.epsilon)
    writer.add_vocab_size(len(decoder.embeddings))


def _add_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.splitting)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    for name, number in vocabulary.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(vocabulary.begins)
    writer.add_add_space_prefix(vocabulary.space_first)
    if vocabulary.chat_template:
        writer.add_chat_template(vocabulary.chat_template)


def _tensors(decoder: Decoder, layers: tuple[Layer, ...]) -> Iterator[tuple[str, Tensor]]:
    yield "token_embd.weight", decoder.embeddings
    yield "output_norm.weight", decoder.norm
    if decoder.head is not None:
        yield "output.weight", decoder.head
    factors = _frequency_factors(decoder)
    if not torch.allclose(factors, torch.ones(()), FEW, FEW):
        yield "rope_freqs.weight", factors
    for i, layer in enumerate(layers):
        for name, tensor in tensors_of(layer, decoder):
            yield f"blk.{i}.{name}", tensor


def _frequency_factors(decoder: Decoder) -> Tensor:
    """Return the divisors from the unscaled frequencies to the network's, `(D / 2,)`."""
    steps = torch.arange(0, decoder.head_size, 2, dtype=torch.float64) / decoder.head_size
    return (decoder.theta**-steps / decoder.frequencies.cpu().double()).float()


def _add_tensor(gguf: Any, writer: Any, name: str, tensor: Tensor, matrices: str) -> None:
    kind = "F32" if tensor.ndim == 1 else "F16" if matrices == "Q8_0" and tensor.shape[-1] % GROUP else matrices
    if kind == "F16" and not tensor.half().isfinite().all():
        raise Refusal(
            "weights that F16 holds, finite and below 65504",
            f"'{name}' has values up to {float(tensor.abs().max()):.3g}",
            "Write format='gguf-f32'.",
        )
    raw = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), raw), raw_dtype=raw)
