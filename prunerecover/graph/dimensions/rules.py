"""Rules of the operations: a rule moves, ties, consumes or fixes the ids of the operands.

Operations with PyTorch's element-wise tag need no entry. An operation without a rule fixes all ids of its operands.
"""

from __future__ import annotations

from typing import Any

import torch

from prunerecover.graph.dimensions import (
    rules_elementwise as elementwise,
)
from prunerecover.graph.dimensions import (
    rules_movement as moves,
)
from prunerecover.graph.dimensions import (
    rules_products as products,
)
from prunerecover.graph.dimensions.operation import Operation, Rule, unknown
from prunerecover.graph.dimensions.running_line import running_line
from prunerecover.graph.dimensions.statistics import follow_statistics, note_numbers, statistics_read
from prunerecover.graph.dimensions.ties import Ties


def follow(ties: Ties, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Note the ties of an operation.

    Args:
        ties: Ties of the forward pass.
        func: ATen operator.
        args: Positional arguments.
        kwargs: Keyword arguments.
        out: Output of the operator.
    """
    name: str = func.overloadpacket.__name__
    plain = name.rstrip("_")
    operation = Operation(func, plain, name != plain, args, kwargs, out)
    rule = RULES.get(plain) or (elementwise.pointwise if torch.Tag.pointwise in func.tags else unknown)
    rule = rule if operation.outputs else unknown  # for example torch.equal, with a bool as result
    before = statistics_read(ties, operation)  # operations in place overwrite the records
    rule(ties, operation)
    if ties.ids.pinned:
        ties.record_pins(plain, running_line())
    follow_statistics(ties, operation, before, carries=rule in CARRYING)
    note_numbers(ties, operation, elementwise=rule in ELEMENTWISE)


NAMES: dict[Rule, str] = {
    moves.same: "clone detach alias contiguous _to_copy lift_fresh zeros_like ones_like full_like empty_like",
    moves.fill_constant: "empty zeros ones full new_empty new_zeros new_ones new_full empty_strided new_empty_strided",
    moves.move_elements: "view _unsafe_view _reshape_alias reshape permute transpose t unsqueeze squeeze expand "
    "select slice split split_with_sizes unsafe_split unsafe_split_with_sizes unbind index index_select flip roll "
    "repeat unfold diagonal pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle tril triu",
    moves.restrided: "as_strided",
    moves.padded: "constant_pad_nd",
    moves.concatenated: "cat",
    moves.stacked: "stack",
    moves.copied: "copy",
    moves.index_put: "index_put",
    elementwise.pointwise: "hardswish _prelu_kernel masked_fill where fill zero rsub threshold fmod remainder",
    elementwise.multiplied: "mul",
    elementwise.reduced: "sum mean max min amax amin argmax argmin var var_mean std std_mean prod linalg_vector_norm "
    "norm any all logsumexp",
    elementwise.along_one: "_softmax _log_softmax _safe_softmax cumsum cumprod",
    elementwise.gated: "glu",
    elementwise.per_channel: "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa upsample_trilinear3d "
    "grid_sampler_2d grid_sampler_3d reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d roi_align roi_pool",
    elementwise.batch_norm: "native_batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update "
    "cudnn_batch_norm miopen_batch_norm",
    elementwise.layer_norm: "native_layer_norm _fused_rms_norm",
    elementwise.group_norm: "native_group_norm",
    products.convolution: "convolution _convolution",
    products.matrix_product: "mm bmm addmm baddbmm",
    products.linear: "linear",
    products.attention: "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable",
    products.embedding: "embedding",
    moves.packed: "_pack_padded_sequence _pad_packed_sequence",
}
RULES: dict[str, Rule] = {name: rule for rule, names in NAMES.items() for name in names.split()}
ELEMENTWISE: tuple[Rule, ...] = (elementwise.pointwise, elementwise.multiplied)
CARRYING: tuple[Rule, ...] = (*ELEMENTWISE, elementwise.reduced, moves.same, moves.move_elements)
