"""Rules of the operations: a rule moves, ties, consumes or fixes the ids of the operands.

Operations with PyTorch's element-wise tag need no entry. An operation without a rule fixes all ids of its operands.
"""

from __future__ import annotations

import torch

import prunerecover.graph.dimensions.rules_elementwise as elementwise
import prunerecover.graph.dimensions.rules_movement as moves
import prunerecover.graph.dimensions.rules_products as products
from prunerecover.graph.dimensions.operation import Rule, unknown
from prunerecover.graph.dimensions.operation_names import (
    BATCH_NORMS,
    COPIES,
    GROUP_NORMS,
    LAYER_NORMS,
    LIKENESSES,
    MOVEMENTS,
    STATISTICS,
    names,
)
from prunerecover.graph.dimensions.running_line import running_line
from prunerecover.graph.dimensions.statistics import follow_statistics, note_numbers, statistics_read
from prunerecover.graph.dimensions.ties import Ties
from prunerecover.graph.dimensions.watching import Operation


def follow(ties: Ties, operation: Operation) -> None:
    """Note the ties of an operation."""
    pointwise = torch.Tag.pointwise in operation.func.tags
    rule = RULES.get(operation.name) or (elementwise.pointwise if pointwise else unknown)
    rule = rule if operation.outputs else unknown  # for example torch.equal, with a bool as result
    before = statistics_read(ties, operation)  # operations in place overwrite the records
    rule(ties, operation)
    if ties.ids.pinned:
        ties.record_pins(operation.name, running_line())
    follow_statistics(ties, operation, before, carries=rule in CARRYING)
    note_numbers(ties, operation, elementwise=rule in ELEMENTWISE)


NAMES: dict[Rule, frozenset[str]] = {
    moves.same: COPIES | LIKENESSES,
    moves.move_elements: MOVEMENTS | {"tril", "triu"},
    elementwise.reduced: STATISTICS | names("max min amax amin argmax argmin prod any all logsumexp"),
    elementwise.batch_norm: BATCH_NORMS,
    elementwise.layer_norm: LAYER_NORMS,
    elementwise.group_norm: GROUP_NORMS,
    moves.fill_constant: names(
        "empty zeros ones full new_empty new_zeros new_ones new_full empty_strided new_empty_strided"
    ),
    moves.restrided: names("as_strided"),
    moves.padded: names("constant_pad_nd"),
    moves.concatenated: names("cat"),
    moves.stacked: names("stack"),
    moves.copied: names("copy"),
    moves.index_put: names("index_put"),
    elementwise.pointwise: names("hardswish _prelu_kernel masked_fill where fill zero rsub threshold fmod remainder"),
    elementwise.multiplied: names("mul"),
    elementwise.along_one: names("_softmax _log_softmax _safe_softmax cumsum cumprod"),
    elementwise.gated: names("glu"),
    elementwise.per_channel: names(
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d "
        "upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa upsample_trilinear3d "
        "grid_sampler_2d grid_sampler_3d reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
        "replication_pad2d replication_pad3d roi_align roi_pool"
    ),
    products.convolution: names("convolution _convolution"),
    products.matrix_product: names("mm bmm addmm baddbmm"),
    products.linear: names("linear"),
    products.attention: names(
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable"
    ),
    products.embedding: names("embedding"),
    moves.packed: names("_pack_padded_sequence _pad_packed_sequence"),
}
RULES: dict[str, Rule] = {name: rule for rule, own in NAMES.items() for name in own}
ELEMENTWISE: tuple[Rule, ...] = (elementwise.pointwise, elementwise.multiplied)
CARRYING: tuple[Rule, ...] = (*ELEMENTWISE, elementwise.reduced, moves.same, moves.move_elements)
