"""The curves of a training run: loss and metrics by epoch, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from export.reports.plot import INK, MARKERS, NO_METADATA, SERIES, SETTINGS, as_element
from models.manifest import TrainedEpoch

COLOURS = ("#0b63b0", "#b3470b", "#00735c", "#9b2f8f", "#7a5c00", "#c01f4a", "#3c4a9e", "#4d4d4d")


def curves_of(epochs: Sequence[TrainedEpoch], prefix: str) -> str:
    """Return an `svg` element for a page, see `export.reports.plot.svg_of`."""
    return as_element(_draw(epochs), prefix, "Loss and metrics by epoch")


def page_of(epochs: Sequence[TrainedEpoch]) -> str:
    """Return a separate file, with its own colours."""
    svg = _draw(epochs).replace(INK, "#1c1f23")
    for placeholder, colour in zip(SERIES, COLOURS, strict=True):
        svg = svg.replace(placeholder, colour)
    return svg


def _draw(epochs: Sequence[TrainedEpoch]) -> str:
    series: list[tuple[str, list[float | None]]] = [
        ("loss", [each.loss for each in epochs]),
        ("evaluation loss", [each.evaluation_loss for each in epochs]),
    ]
    names = dict.fromkeys(name for each in epochs for name in each.metrics)
    metrics = [(name, [each.metrics.get(name) for each in epochs]) for name in names]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        panels = figure.subplots(1, 2 if metrics else 1, squeeze=False)[0]
        at = 0
        for axes, lines in zip(panels, (series, metrics), strict=False):
            for name, values in lines:
                points = [
                    (e.epoch, v) for e, v in zip(epochs, values, strict=True) if v is not None
                ]
                if points:
                    style = {
                        "color": SERIES[at % len(SERIES)],
                        "marker": MARKERS[at % len(MARKERS)],
                    }
                    axes.plot(*zip(*points, strict=True), label=name, markersize=4, **style)
                    at += 1
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(color=INK, alpha=0.15, linewidth=0.6)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            if axes.lines:
                axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=NO_METADATA)
    return out.getvalue()
