"""The picture of an accuracy map shows the runs, the prediction and the pick."""

from __future__ import annotations

import numpy as np
import pytest
from cases.maps import LINE, TABLE, noisy
from matplotlib.figure import Figure

from prunerecover import fit_map
from prunerecover.boundary.designs import spread
from prunerecover.boundary.figure import plot_map
from prunerecover.boundary.map_points import kept_fractions


def drawn(figure: Figure) -> dict[str, list[list[float]]]:
    return {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].lines}


def test_the_picture_of_a_line_shows_runs_prediction_pick_and_dense() -> None:
    runs = noisy(((0, 0), *spread(LINE, 4)))
    fitted = fit_map(runs, 12)
    pick = fitted.best(n_remove=8)
    figure = plot_map(fitted, LINE, pick)
    shown = drawn(figure)
    assert shown["runs"] == [[run.attention, run.accuracy] for run in runs[1:]]
    assert shown["pick"] == [[pick.attention, pick.predicted]]
    assert np.array(shown["predicted"])[:, 1] == pytest.approx(fitted.surface.predict(kept_fractions(LINE, (12, 12))))
    assert shown["dense"][0][1] == runs[0].accuracy
    assert figure.get_suptitle().startswith(f"{pick.attention} attentions and {pick.activation} activ")


def test_the_picture_of_the_plane_shows_runs_line_and_pick() -> None:
    fitted = fit_map(TABLE, 12)
    shown = drawn(plot_map(fitted, LINE, fitted.best(n_remove=8)))
    assert shown["runs"] == [list(point.split) for point in TABLE]
    assert shown["feasible"] == [list(split) for split in LINE]
    assert shown["pick"] == [[2, 6]]
    assert "pick" not in drawn(plot_map(fitted, LINE))


def test_a_picture_needs_splits() -> None:
    with pytest.raises(ValueError, match="Expected at least one feasible split to draw, but got none"):
        plot_map(fit_map(TABLE, 12), [])
