"""The dashboard's queries, as Grafana would send them, and what is wrong with their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.prometheus import Prometheus, Series

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "torchlane.json"
MACROS = {"$__rate_interval": "4s", "$model": ".*", "$instance": ".*"}
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
# A name that is no function's, with its matchers if it has any.
SELECTOR = re.compile(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()\s*(\{[^}]*\})?")
WORDS = {"and", "or", "unless", "offset", "bool"}
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')


@dataclass(frozen=True)
class Query:
    """One query of a panel, its macros filled in."""

    panel: str
    expression: str
    instant: bool


def load(text: str | None = None) -> dict[str, Any]:
    """The deployed dashboard, or the one in a text."""
    made: dict[str, Any] = json.loads(FILE.read_text() if text is None else text)
    return made


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel and row, those inside of collapsed rows too."""
    top = dashboard["panels"]
    return [*top, *(inner for panel in top for inner in panel.get("panels", []))]


def queries(dashboard: dict[str, Any]) -> Iterator[Query]:
    """Of all panels and annotations, as far as they ask Prometheus."""
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            if target["datasource"]["type"] != "prometheus":
                continue
            yield Query(panel["title"], _filled(target["expr"]), target["instant"])
    for annotation in dashboard["annotations"]["list"]:
        yield Query(annotation["name"], _filled(annotation["expr"]), False)


def variables(dashboard: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name -> the selector and the label whose values it offers."""
    found = {}
    for each in dashboard["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
        if match is None:
            raise ValueError(f"variable {each['name']} is no label_values(selector, label)")
        found[each["name"]] = (match[1], match[2])
    return found


def selectors(expression: str) -> list[str]:
    """Everything that an expression takes from the store: metrics, each with its matchers."""
    found = SELECTOR.finditer(GROUPING.sub(" ", expression))
    return [match[1] + (match[2] or "") for match in found if match[1] not in WORDS]


def names(expression: str) -> set[str]:
    """The metrics that an expression mentions."""
    return {selector.partition("{")[0] for selector in selectors(expression)}


def matchers(selector: str) -> list[tuple[str, str, str]]:
    """Label, operator and value of each matcher."""
    return [(match[1], match[2], match[3]) for match in MATCHER.finditer(selector)]


def answer(prometheus: Prometheus, query: Query, start_s: float, end_s: float) -> list[Series]:
    """What the panel would show at the end of a time, or over all of it."""
    if query.instant:
        return prometheus.query(query.expression, end_s)
    return prometheus.query_range(query.expression, start_s, end_s)


def _filled(expression: str) -> str:
    for macro, value in MACROS.items():
        expression = expression.replace(macro, value)
    if "$" in expression:
        raise ValueError(f"a macro that is not known here: {expression}")
    return expression
