"""Renders the report as one self-contained page: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from export.reports.content import content_of
from export.reports.curves import curves_of
from export.reports.pictures import example_seen
from export.reports.plot import svg_of
from models.manifest import Manifest, TrainedEpoch
from models.plan import DevicePlan


def render(manifest: Manifest) -> str:
    """Render a manifest: the same content as on the terminal, and a plot per device.

    The manifest need not be complete: a page cannot contain its own digest, so it is rendered
    before its file is in the manifest.

    Args:
        manifest: all its texts are escaped.

    Returns:
        HTML; the same manifest gives the same page.
    """
    environment = Environment(
        loader=PackageLoader("export.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        content=content_of(manifest), plot=_plot, curves=_curves, example=example_seen(manifest)
    )


def _plot(device: DevicePlan, prefix: str) -> Markup:
    svg = svg_of(device, prefix)
    return Markup(svg)  # nosec B704 # made here, with escaped texts


def _curves(epochs: Sequence[TrainedEpoch], prefix: str) -> Markup:
    svg = curves_of(epochs, prefix)
    return Markup(svg)  # nosec B704 # made here, with escaped texts
