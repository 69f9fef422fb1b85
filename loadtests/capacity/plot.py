"""The plot of a search: latency over the offered rate, the SLO, and the capacity."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from loadtests.capacity.conditions import Conditions
from loadtests.capacity.finding import Found
from loadtests.capacity.trial import Gates, Trial

INK, SOFT, RED = "#1c1f23", "#59616b", "#b3261e"
# percentile -> colour and marker; told apart without colour, too
SERIES: tuple[tuple[str, str, str, Callable[[Trial], float]], ...] = (
    ("p99", "#0b63b0", "o", lambda trial: trial.typical_p99_ms),
    ("p95", "#00735c", "s", lambda trial: trial.typical_p95_ms),
    ("p50", "#7a5c00", "^", lambda trial: trial.typical_p50_ms),
)
DOTS_PER_INCH = 144
TITLE_CHARACTERS = 76  # of a line of the title, as wide as the figure
_SETTINGS: dict[Any, Any] = {  # the stubs know the keys by name, and no wider type fits
    "font.family": ["DejaVu Sans"],  # what comes with matplotlib: its sizes are known
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
}


def png_of(found: Found, conditions: Conditions, headline: str) -> bytes:
    """Two panels over the offered rate: latency quantiles, and what was served.

    The latencies are the typical ones (medians over the parts of a trial), by which the search
    decides. Filled markers kept to the SLO, hollow ones missed it; lines go through the medians
    of the trials at about the same rate.

    Args:
        found: at least one trial.
        conditions: said below the title.
        headline: the title.

    Returns:
        a PNG.
    """
    gates = Gates(conditions.slo_ms, conditions.fail_ratio)
    trials = [trial for trial in found.trials if trial.kind != "warm-up"] or list(found.trials)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(8.4, 6.6), layout="constrained")
        latency, served = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
        for label, colour, marker, value in SERIES:
            _series(latency, trials, gates, (label, colour, marker), value)
        _latency_axis(latency, trials, gates)
        _served_axis(served, trials, gates)
        _rate_axis(served, trials)
        _mark_capacity((latency, served), found)
        figure.suptitle(
            textwrap.fill(headline, TITLE_CHARACTERS),
            x=0.02,
            ha="left",
            fontsize=11.5,
            fontweight="bold",
            parse_math=False,  # a server's own words may hold dollar signs
        )
        latency.set_title(
            f"{conditions.model} {conditions.version} ({conditions.precision}), workload "
            f"{conditions.workload}, {conditions.arrivals} arrivals, open loop\n"
            f"{conditions.machine}; {conditions.date}",
            loc="left",
            fontsize=8.5,
            color=SOFT,
            parse_math=False,
        )
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=DOTS_PER_INCH)
    return out.getvalue()


def _series(
    axes: Axes,
    trials: Sequence[Trial],
    gates: Gates,
    look: tuple[str, str, str],
    value: Callable[[Trial], float],
) -> None:
    label, colour, marker = look
    groups = grouped(trials)
    axes.plot(
        [math.exp(fmean([math.log(trial.rate_per_s) for trial in group])) for group in groups],
        [median([_shown(value(trial)) for trial in group]) for group in groups],
        color=colour,
        linewidth=1.3,
        alpha=0.75,
        marker=marker,
        markersize=0,
    )
    for kept in (True, False):
        those = [trial for trial in trials if trial.meets(gates) == kept]
        axes.plot(
            [trial.rate_per_s for trial in those],
            [_shown(value(trial)) for trial in those],
            linestyle="none",
            color=colour,
            marker=marker,
            markersize=5.5,
            markeredgewidth=1.1,
            markerfacecolor=colour if kept else "white",
            label=label if kept else None,
        )


def _latency_axis(axes: Axes, trials: Sequence[Trial], gates: Gates) -> None:
    values = [_shown(value(trial)) for trial in trials for *_, value in SERIES]
    axes.set_yscale("log")
    axes.set_ylim(0.6 * min(*values, gates.slo_ms), 1.6 * max(*values, gates.slo_ms))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("latency from arrival (ms)")
    axes.axhline(
        gates.slo_ms, color=RED, linewidth=1.1, linestyle="--", label=f"SLO: {gates.slo_ms:g} ms"
    )
    axes.plot(
        [],
        [],
        linestyle="none",
        marker="o",
        color=SOFT,
        markerfacecolor="white",
        label="hollow: SLO missed",
    )
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    _plain(axes)


def _served_axis(axes: Axes, trials: Sequence[Trial], gates: Gates) -> None:
    rates = sorted(trial.rate_per_s for trial in trials)
    steps = [rates[0] * (rates[-1] / rates[0]) ** (step / 100) for step in range(101)]
    axes.plot(steps, steps, color=SOFT, linewidth=0.9, linestyle=":", label="offered")
    answered = [trial.achieved_per_s for trial in trials]
    in_time = [trial.goodput_per_s for trial in trials]
    for values, colour, marker, label in (
        (answered, "#3c4a9e", "D", "answered"),
        (in_time, "#9b2f8f", "v", f"within {gates.slo_ms:g} ms"),
    ):
        axes.plot(
            [trial.rate_per_s for trial in trials],
            values,
            linestyle="none",
            marker=marker,
            markersize=4.5,
            color=colour,
            label=label,
            alpha=0.85,
        )
    axes.set_ylim(bottom=0, top=1.15 * max(*answered, rates[0]))
    axes.set_ylabel("requests/s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    _plain(axes)


def _rate_axis(axes: Axes, trials: Sequence[Trial]) -> None:
    rates = [trial.rate_per_s for trial in trials]
    axes.set_xscale("log")
    axes.set_xlim(min(rates) / 1.25, max(rates) * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("offered rate (requests/s)")


def _mark_capacity(panels: Sequence[Axes], found: Found) -> None:
    capacity = found.answer.capacity_per_s
    if capacity is None:
        return
    for axes in panels:
        axes.axvline(capacity, color=INK, linewidth=1.0)
        if not found.at_least:
            axes.axvspan(
                found.answer.low_per_s, found.answer.high_per_s, color=INK, alpha=0.10, linewidth=0
            )
    panels[0].annotate(
        f"{'at least ' if found.at_least else ''}{capacity:,.4g}/s"
        f"{'' if found.answer.confirmed else ', not confirmed'}",
        (capacity, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontweight="bold",
    )


def grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    """By rate, ascending; trials within 4 % of the first of a group are of the same group."""
    groups: list[list[Trial]] = []
    for trial in sorted(trials, key=lambda each: each.rate_per_s):
        if groups and trial.rate_per_s <= 1.04 * groups[-1][0].rate_per_s:
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def _plain(axes: Axes) -> None:
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _shown(value_ms: float) -> float:
    return max(value_ms, 0.05)  # a logarithmic axis has no zero
