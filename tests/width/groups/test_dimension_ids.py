"""Parts of the search for groups: ids, maps, even layouts, and copies of models that capture their states."""

from __future__ import annotations

import torch
from cases.models import tiny
from torch import Tensor, nn

from prunerecover.graph.dimensions.dimension_ids import RIGID, DimensionIds, Operand, compact, unify, varying
from prunerecover.model.copies import share_copy
from prunerecover.plan.groups import Slice
from prunerecover.width.groups.assembly import linear_form


def labelled(*shape: int) -> tuple[DimensionIds, Tensor]:
    """Return DimensionIds that vary in every dimension of a shape, as for features viewed as heads."""
    ids = DimensionIds()
    (flat,) = ids.of_tensor("w", torch.empty(torch.Size(shape).numel()))
    return ids, flat.view(shape)


def sets(ids: DimensionIds, of: Tensor) -> list[list[int]]:
    """Return components of the ids in a map, as lists of positions; rigid ones first, if any."""
    numbers = ids.components()[of.flatten().numpy()]
    return [(numbers == n).nonzero()[0].tolist() for n in sorted(set(numbers.tolist()))]


def test_each_dimension_has_labels_of_its_own() -> None:
    ids = DimensionIds()
    rows, columns = ids.of_tensor("w", torch.empty(3, 1, 2))
    assert (rows.shape, columns.shape) == ((3, 1, 1), (1, 1, 2))
    assert [(o.tensor, o.dim, o.size) for o in ids.owners] == [("w", 0, 3), ("w", 2, 2)]
    assert len({RIGID, *rows.flatten().tolist(), *columns.flatten().tolist()}) == 6


def test_maps_keep_only_the_dimensions_in_which_they_vary() -> None:
    full = torch.arange(3)[:, None].expand(3, 4)
    assert compact(full).tolist() == [[0], [1], [2]]
    assert varying(compact(full)) == (0,)
    assert varying(compact(torch.zeros(2, 2, dtype=torch.long))) == ()


def test_maps_of_what_was_expanded_are_found_without_looking_at_every_element() -> None:
    expanded = torch.arange(3).expand(2**50, 3)
    assert compact(expanded).tolist() == [[0, 1, 2]]
    assert compact(expanded.t()[:, :, None]).tolist() == [[[0]], [[1]], [[2]]]


def test_maps_whose_ends_are_alike_vary_in_between() -> None:
    assert varying(compact(torch.tensor([[1, 2, 1], [3, 4, 3]]))) == (0, 1)


def test_fixing_one_of_two_dimensions_ties_what_lies_along_it() -> None:
    ids, heads = labelled(3, 4)
    (left,) = ids.fixed_along(heads, 1)
    assert varying(left) == (0,)
    assert sets(ids, heads) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_fixing_the_only_dimension_makes_it_rigid() -> None:
    ids, features = labelled(1, 4)
    assert ids.fixed_along(features, 1) == ()
    assert (ids.components()[features.flatten().numpy()] == 0).all()


def test_what_meets_is_tied_and_sizes_of_their_own_are_rigid() -> None:
    ids = DimensionIds()
    (one,), (other,) = ids.of_tensor("a", torch.empty(3)), ids.of_tensor("b", torch.empty(3))
    assert len(unify(ids, [Operand((one,)), Operand((other,))])) == 1
    assert sets(ids, torch.cat([one, other])) == [[0, 3], [1, 4], [2, 5]]
    assert unify(ids, [Operand((one,)), Operand((), solid=(0,))]) == ()
    assert (ids.components() == 0).all()


def test_weights_along_the_heads_go_with_them_and_weights_inside_heads_stay() -> None:
    ids, heads = labelled(3, 4)
    (scale,) = ids.of_tensor("scale", torch.empty(3, 1))
    (inside,) = ids.of_tensor("norm", torch.empty(1, 4))
    unify(ids, [Operand((heads,)), Operand((scale,)), Operand((inside,))])
    component = ids.components()
    assert (component[inside.flatten().numpy()] == 0).all()
    assert (component[heads.numpy()] == component[scale.numpy()]).all()
    assert len(set(component[scale.flatten().numpy()].tolist()) - {0}) == 3


def test_even_layouts_are_those_that_slices_describe() -> None:
    """Every slice is recovered from its indices."""
    for offsets, span, size in [((0,), 1, 2), ((3,), 1, 5), ((0, 12, 24), 4, 3), ((1, 9), 2, 3), ((0, 4, 8, 12), 1, 4)]:
        part = Slice(tensor="w", dim=0, offsets=offsets, span=span)
        positions = torch.full((40,), -1)
        for unit in range(size):
            positions[part.indices(torch.tensor([unit]))] = unit
        assert linear_form(positions.numpy(), size) == (offsets, span)


def test_uneven_layouts_have_no_form() -> None:
    for positions in ([0, 1, 1], [1, 0], [0, 0, 1, -1, 1], [0, 1, -1, 1, 0], [-1, -1], [0, 2, 1]):
        assert linear_form(torch.tensor(positions).numpy(), max(2, max(positions) + 1)) is None


def test_copies_of_models_that_have_run_still_capture_hidden_states() -> None:
    """Transformers installs hooks for hidden states once, and a copy starts without hooks."""
    model: nn.Module = tiny.tiny_llama()
    inputs = tiny.tiny_inputs("llama")
    states = model(**inputs, output_hidden_states=True).hidden_states
    again = share_copy(model)(**inputs, output_hidden_states=True).hidden_states
    assert len(again) == len(states) == 5
    assert all(torch.equal(a, b) for a, b in zip(again, states, strict=True))
