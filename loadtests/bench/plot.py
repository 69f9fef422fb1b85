"""The plot of a benchmark: requests per second by workload, or latency where that is the point."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtests.bench.references import title_of
from loadtests.bench.report import title_of_workload
from loadtests.bench.results import Figure as FigureName
from loadtests.bench.results import Results, Spread, keys, values
from loadtests.bench.workloads import BARE, LIMIT, OUR_OWN

FILE = "bench.png"
INK, SOFT, OUR_COLOUR, THEIR_COLOUR, LIMIT_COLOUR = (
    "#1c1f23",
    "#59616b",
    "#0b63b0",
    "#a3adb8",
    "#d9dee3",
)
COLUMNS = 2
DOTS_PER_INCH = 144
BY_LATENCY = ("one-connection", "open-loop")  # where more requests per second are not the point
_SETTINGS: dict[Any, Any] = {  # the stubs know the keys by name, and no wider type fits
    "font.family": ["DejaVu Sans"],  # what comes with matplotlib: its sizes are known
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
}


def png_of(results: Results, conditions: Mapping[str, Any]) -> bytes:
    """A panel for each workload with a bar for each server: the median, and the rounds' extremes.

    Args:
        results: at least one workload.
        conditions: said below the title.

    Returns:
        a PNG.
    """
    rows = math.ceil(len(results) / COLUMNS)
    heights = [
        max(len(keys(rounds)) for rounds in list(results.values())[at : at + COLUMNS])
        for at in range(0, len(results), COLUMNS)
    ]
    with mpl.rc_context(_SETTINGS):
        size = (11.0, 1.2 + sum(0.26 * height + 0.85 for height in heights))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(
            rows, COLUMNS, squeeze=False, height_ratios=[height + 2 for height in heights]
        ).flat
        for axes, name in zip(panels, results, strict=False):
            _panel(axes, name, results)
        for axes in list(panels):  # what is left of the iterator
            axes.set_visible(False)
        for axes in figure.axes[len(results) :]:
            axes.set_visible(False)
        figure.suptitle(
            f"Torchlane{' (compiled)' if conditions['compiled'] else ''} beside other servers\n"
            f"{conditions['processor']}, {conditions['cores']} "
            f"cores; {conditions['rounds']} round(s) of {conditions['seconds']} s; "
            f"{conditions['date']}",
            x=0.01,
            ha="left",
            fontsize=10,
            parse_math=False,
        )
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=DOTS_PER_INCH)
    return out.getvalue()


def _panel(axes: Axes, name: str, results: Results) -> None:
    rounds = results[name]
    by_latency = name.startswith(BY_LATENCY)
    figure: FigureName = "p50_ms" if by_latency else "requests_per_s"
    spreads = {key: Spread.of(values(rounds, key, figure)) for key in keys(rounds)}
    spreads = {key: spread for key, spread in spreads.items() if not math.isnan(spread.median)}
    order = sorted(spreads, key=lambda key: spreads[key].median, reverse=by_latency)
    medians = [spreads[key].median for key in order]
    beyond = [
        [spreads[key].median - spreads[key].low for key in order],
        [spreads[key].high - spreads[key].median for key in order],
    ]
    axes.barh(
        range(len(order)),
        medians,
        height=0.7,
        color=[_colour(key) for key in order],
        xerr=beyond,
        error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2},
    )
    axes.set_yticks(range(len(order)), [title_of(key) for key in order])
    for at, key in enumerate(order):
        text = f"{medians[at]:,.2f}" if by_latency else f"{medians[at]:,.0f}"
        axes.annotate(
            text, (spreads[key].high, at), xytext=(5, 0), textcoords="offset points", va="center"
        )
    axes.set_xlim(0, 1.18 * max(spread.high for spread in spreads.values()))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    what = "p50, ms: shorter is better" if by_latency else "requests/s"
    axes.set_title(f"{title_of_workload(name)}\n{what}", loc="left", fontsize=9)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colour(key: str) -> str:
    if key in OUR_OWN:
        return OUR_COLOUR
    return LIMIT_COLOUR if key in (BARE, LIMIT) else THEIR_COLOUR
