"""Plots time per item over batch size, as SVG inside the report's page.

The page's style sheet sets the colours, so the plot follows its dark mode: `INK` becomes the colour
of the surrounding text, each of `SERIES` a CSS variable.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape  # nosec B406 # only writes, parses nothing

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from export.timing.timings import per_item
from models.plan import DevicePlan, Form, FormTimes, form_at

INK = "#010101"
SERIES = ("#020202", "#030303", "#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # distinct without colour, too
RING = "the plan's form, per precision"
WIDTH_INCHES, HEIGHT_INCHES = 7.6, 5.0

SETTINGS: dict[Any, Any] = {  # the stubs list the keys, and no wider type fits
    "svg.hashsalt": "torchlane",  # equal plots give equal bytes
    "svg.fonttype": "none",  # text stays text for screen readers, search and copying
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so its metrics are known
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "path.simplify": False,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def svg_of(device: DevicePlan, prefix: str) -> str:
    """Plot time per item in microseconds over the batch size, both logarithmic, for every form.

    Bars span the middle half of the rounds; a ring marks the plan's form at each size.

    Args:
        device: the measured times and the plan.
        prefix: of every id, so that a page can have several plots.

    Returns:
        an `svg` element without prolog; styled by the variables --series-0 ... and by `color`.
    """
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        axes = figure.add_subplot()
        for times, style in zip(device.times, styles(device).values(), strict=True):
            _draw(axes, times, style)
        _ring_the_plan(axes, device)
        _finish(axes, device)
        handles, labels = axes.get_legend_handles_labels()
        if labels[0] == RING:  # lines come before bars; the ring explains what the others are
            handles, labels = handles[1:] + handles[:1], labels[1:] + labels[:1]
        figure.legend(
            handles, labels, loc="outside lower center", ncols=2, frameon=False, handlelength=3.5
        )
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=NO_METADATA)
    return as_element(out.getvalue(), prefix, f"Time per item on {device.processor}")


def styles(device: DevicePlan) -> Mapping[Form, tuple[str, str]]:
    """Return colour and marker of each form: one pair per variant, optimized or not."""
    variants = list(dict.fromkeys(times.form.variant for times in device.times))
    return {
        times.form: (
            SERIES[variants.index(times.form.variant) % len(SERIES)],
            MARKERS[variants.index(times.form.variant) % len(MARKERS)],
        )
        for times in device.times
    }


def _draw(axes: Axes, times: FormTimes, style: tuple[str, str]) -> None:
    colour, marker = style
    points = per_item(times)
    axes.errorbar(
        list(points),
        [point.median_us for point in points.values()],
        yerr=[
            [point.median_us - point.low_us for point in points.values()],
            [point.high_us - point.median_us for point in points.values()],
        ],
        label=str(times.form),
        color=colour,
        marker=marker,
        # an optimized form is dashed and hollow, so that colour is not the only difference
        linestyle="--" if times.form.optimized else "-",
        markerfacecolor="none" if times.form.optimized else colour,
        markersize=6,
        linewidth=1.4,
        elinewidth=1,
        capsize=3,
    )


def _ring_the_plan(axes: Axes, device: DevicePlan) -> None:
    sizes, heights = [], []
    for times in device.times:
        steps = device.steps.get(times.precision)
        for size, point in per_item(times).items():
            if steps is not None and form_at(steps, size) == times.form:
                sizes.append(size)
                heights.append(point.median_us)
    if sizes:
        axes.plot(
            sizes,
            heights,
            label=RING,
            linestyle="none",
            marker="o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor=INK,
            markeredgewidth=0.8,
        )


def _finish(axes: Axes, device: DevicePlan) -> None:
    sizes = sorted({size for times in device.times for size in times.batch_sizes})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(*_round_limits(device))
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("batch size (items)")
    axes.set_ylabel("time per item (us)")
    axes.grid(color=INK, alpha=0.15, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _round_limits(device: DevicePlan) -> tuple[float, float]:
    """Return limits of 1, 2 or 5 times a power of ten around all bars: both ends get a label."""
    points = [point for times in device.times for point in per_item(times).values()]
    low = max(0.95 * min(point.low_us for point in points), 1e-3)
    high = 1.05 * max(point.high_us for point in points)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(max(high, low))) + 2)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    below = [tick for tick in ticks if tick < low]
    above = [tick for tick in ticks if tick > high]
    return below[-1], above[0]


def as_element(svg: str, prefix: str, title: str) -> str:
    """Convert an SVG document to an element of a page: own ids, a title, the page's colours."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would style the whole page
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    svg = svg.replace(INK, "currentColor")
    for index, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--series-{index})")
    head, tail = svg.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return (
        f'{head} role="img" aria-labelledby="{prefix}-title" style="stroke-linejoin: round">'
        f'<title id="{prefix}-title">{escape(title)}</title>{tail}'
    )
