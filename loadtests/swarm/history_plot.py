"""The plot of a run: latency over the rate at which it was measured, as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from loadtests.swarm.history import PERCENTILES, Window, steps

COLOURS = {50: "#4477aa", 95: "#ccaa22", 99: "#bb3344"}  # told apart without colour, too:
MARKERS = {50: "o", 95: "s", 99: "^"}
WIDTH_INCHES, HEIGHT_INCHES, DPI = 8.0, 5.0, 150
LEGEND = "large: all answers at a number of users, which stands above p99; small: single windows"
LEAST_MS = 0.5
MIN_RATIO = 4.0  # of the axis of latency: a flat line must not look like a mountain
_SETTINGS: dict[Any, Any] = {  # the stubs know the keys by name, and no wider type fits
    "font.family": ["DejaVu Sans"],  # what comes with matplotlib
    "font.size": 10,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.color": "#dddddd",
}


def draw(windows: Sequence[Window], file: Path) -> None:
    """Draw p50, p95 and p99 over requests per second.

    Small marks are windows of time; large ones, with a line in the order of users, are all windows
    of a number of users together.

    Args:
        windows: at least one, each with answers.
        file: to be written, as PNG.
    """
    held = steps(windows)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained", dpi=DPI)
        axes = figure.add_subplot()
        for percent in PERCENTILES:
            _draw_percentile(axes, percent, windows, held)
        _name_users(axes, held)
        _finish(axes, windows)
        figure.savefig(file, format="png")


def _draw_percentile(
    axes: Axes, percent: int, windows: Sequence[Window], held: Sequence[Window]
) -> None:
    colour, marker = COLOURS[percent], MARKERS[percent]
    axes.scatter(
        [window.rate for window in windows],
        [_drawn_ms(window, percent) for window in windows],
        s=9,
        color=colour,
        alpha=0.3,
        linewidths=0,
        marker=marker,
    )
    axes.plot(
        [step.rate for step in held],
        [_drawn_ms(step, percent) for step in held],
        color=colour,
        marker=marker,
        markersize=6,
        markeredgecolor="white",
        linewidth=1.2,
        label=f"p{percent}",
    )


def _drawn_ms(window: Window, percent: int) -> float:
    """Locust counts in whole milliseconds, and 0 has no place on a logarithmic axis."""
    return max(LEAST_MS, window.percentile_ms(percent))


def _name_users(axes: Axes, held: Sequence[Window]) -> None:
    """Write the number of users above each step."""
    for step in held:
        axes.annotate(
            f"{step.users}",
            (step.rate, _drawn_ms(step, PERCENTILES[-1])),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#555555",
        )


def _finish(axes: Axes, windows: Sequence[Window]) -> None:
    seconds = sum(window.seconds for window in windows)
    requests = sum(window.requests for window in windows)
    axes.set_title(
        f"Latency over rate: {requests:,} answers in {seconds:.0f} s", loc="left", fontsize=11
    )
    axes.set_xlabel("answers per second")
    axes.set_ylabel("latency in ms, closed loop")
    axes.set_yscale("log")
    _ticks(axes)
    axes.set_xlim(left=0, right=1.08 * max(window.rate for window in windows))
    axes.legend(loc="upper left", frameon=False, ncols=len(PERCENTILES))
    figure = axes.get_figure()
    if figure is not None:
        figure.supxlabel(LEGEND, fontsize=8, color="#555555", x=0.99, ha="right")


def _ticks(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, MIN_RATIO * low) * 1.6)  # room for the legend
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
