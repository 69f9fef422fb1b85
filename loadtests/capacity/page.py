"""The report as one page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import base64
import dataclasses

from jinja2 import Environment, PackageLoader, StrictUndefined

from loadtests.capacity.conditions import Conditions
from loadtests.capacity.finding import Found
from loadtests.capacity.results import COLUMNS, cells_of, headline, notes
from loadtests.capacity.trial import Gates


def render(found: Found, conditions: Conditions, png: bytes) -> str:
    """The page of a search.

    Args:
        found: whatever it holds, its texts are shown as texts.
        conditions: of the measurement.
        png: the plot, embedded.
    """
    gates = Gates(conditions.slo_ms, conditions.fail_ratio)
    environment = Environment(
        loader=PackageLoader("loadtests.capacity"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("capacity.html.j2").render(
        headline=headline(found, gates),
        notes=notes(found, gates),
        png=base64.b64encode(png).decode("ascii"),
        columns=COLUMNS,
        rows=[cells_of(trial, gates) for trial in found.trials],
        facts=_facts(conditions),
    )


def _facts(conditions: Conditions) -> list[tuple[str, str]]:
    facts = dataclasses.asdict(conditions)
    settings = facts.pop("settings")
    return [
        (name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in (facts | settings).items()
    ]
