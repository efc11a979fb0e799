"""Names of ATen operators with the same effect, without the underscore of operations in place."""

from __future__ import annotations


def names(listed: str) -> frozenset[str]:
    """Return names in a text as a set."""
    return frozenset(listed.split())


COPIES = names("alias clone detach _to_copy contiguous lift_fresh")
LIKENESSES = names("zeros_like ones_like full_like empty_like")
BLANK = LIKENESSES | names("rand_like randn_like new_zeros new_ones new_full new_empty new_empty_strided sym_size")
MOVEMENTS = names(
    "view _unsafe_view _reshape_alias reshape permute transpose t unsqueeze squeeze expand select slice split "
    "split_with_sizes unsafe_split unsafe_split_with_sizes unbind index index_select flip roll repeat unfold diagonal "
    "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle"
)
STATISTICS = names("mean var var_mean std std_mean linalg_vector_norm norm sum")
BATCH_NORMS = names(
    "native_batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update cudnn_batch_norm miopen_batch_norm"
)
LAYER_NORMS = names("native_layer_norm _fused_rms_norm")
GROUP_NORMS = names("native_group_norm")
