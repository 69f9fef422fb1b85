"""Metrics, rules, alerts and dashboard, against a real Prometheus that scrapes a loaded server."""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.errors import STATUS
from tests.e2e import dashboard
from tests.e2e.monitored import Stack, loaded_stack
from tests.e2e.prometheus import DEPLOYED, missing_programs, promtool

ROOT = Path(__file__).parents[2]
PROVISIONED = ROOT / "deploy" / "grafana" / "provisioning"
ALERTS = re.findall(r"- alert: (\w+)", (DEPLOYED / "alerts.yml").read_text())
# What a healthy server shows as zero all the time, or at the moments that a scrape happens to hit.
MAY_BE_ZERO = {
    "Alerts firing",
    "In flight",
    "Requests in flight",
    "Queue depth",
    "Queue in bytes",
    "Predicted wait",
    "Splits and moves",
    "Refused for lack of memory",
    "Rolled back",
}
WHERE_SLOW = {"TorchlaneSlow", "TorchlaneQueueWaitHigh"}  # on a busy machine, rightly
CODES = {kind.code for kind in STATUS} | {"ok", "internal", "not_found", "method_not_allowed"}
BUILT_IN_PANELS = {"row", "stat", "table", "timeseries", "heatmap", "state-timeline"}

needs_prometheus = pytest.mark.skipif(
    bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with loaded_stack(tmp_path_factory.mktemp("monitoring")) as made:
        yield made


# The rules


@needs_prometheus
def test_promtool_accepts_configuration_and_rules() -> None:
    for command in (
        ("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml"),
        ("check", "rules", "--lint=all", "--lint-fatal", "recording.yml", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = promtool(*command)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_every_alert_has_severity_description_and_action(stack: Stack) -> None:
    alerts = [rule for rule in stack.prometheus.rules() if rule.alerts]
    assert [rule.name for rule in alerts] == ALERTS
    for rule in alerts:
        assert rule.labels["severity"] in {"critical", "warning"}, rule.name
        assert set(rule.annotations) == {"summary", "description", "action"}, rule.name


def unknown_in_rule(stack: Stack, query: str) -> list[str]:
    """What a rule's expression asks for and this Prometheus has never seen."""
    stack.prometheus.query(query)  # raises where it cannot be evaluated
    known = set(stack.prometheus.label_values("__name__"))
    problems = [f"no metric {name}" for name in sorted(dashboard.names(query) - known)]
    for selector in dashboard.selectors(query):
        metric = selector.partition("{")[0]
        if metric not in known:
            continue
        labels = stack.prometheus.label_names(metric)
        for label, operator, value in dashboard.matchers(selector):
            if label not in labels:
                problems.append(f"no label {label} on {metric}")
            if label == "job" and value not in stack.prometheus.label_values("job", metric):
                problems.append(f"no job {value} of {metric}")
            codes = set(value.split("|")) if operator == "=~" else {value}
            if label in {"code", "outcome"} and not codes <= {*CODES, "server_error"}:
                problems.append(f"no code {value}")
    return problems


@needs_prometheus
def test_every_rule_queries_existing_series(stack: Stack) -> None:
    for rule in stack.prometheus.rules():
        assert dashboard.names(rule.query), rule.query
        assert unknown_in_rule(stack, rule.query) == [], rule.name


# The dashboard


def problems(stack: Stack, query: dashboard.Query) -> list[str]:
    """What keeps a query of the dashboard from showing what it should."""
    series = dashboard.answer(stack.prometheus, query, stack.start_s, stack.end_s)
    found = [] if series else ["no data"]
    found += [f"no finite value in {each.labels}" for each in series if not each.finite]
    if query.panel not in MAY_BE_ZERO and not any(any(each.finite) for each in series):
        found.append("nothing but zeros")
    # `or vector(0)` and sums of several metrics would hide what one of them lacks.
    for selector in dashboard.selectors(query.expression):
        if not stack.series_of(f"last_over_time({selector}[1m])"):
            found.append(f"nothing matches {selector}")
    return [f"{query.panel}: {problem}" for problem in found]


@needs_prometheus
def test_every_query_of_the_dashboard_shows_data(stack: Stack) -> None:
    queries = list(dashboard.queries(dashboard.load()))
    assert len(queries) > 40
    starts = [query for query in queries if query.panel == "Starts"]
    assert len(starts) == 1
    assert (
        dashboard.answer(stack.prometheus, starts[0], stack.start_s, stack.end_s) == []
    )  # none so far
    assert stack.series_of(dashboard.selectors(starts[0].expression)[0]) == 1
    shown = [query for query in queries if query not in starts]
    assert [problem for query in shown for problem in problems(stack, query)] == []


@needs_prometheus
def test_dashboard_variables_list_models_and_instances(stack: Stack) -> None:
    offered = {
        name: stack.prometheus.label_values(label, selector)
        for name, (selector, label) in dashboard.variables(dashboard.load()).items()
    }
    address = f"127.0.0.1:{stack.server.port}"
    models = ["canary", "double", "lazy", "other"]
    assert offered == {"model": models, "instance": [address]}


def test_panels_need_only_provisioned_sources_and_no_plugin() -> None:
    text = (PROVISIONED / "datasources" / "prometheus.yml").read_text()
    jaeger = (PROVISIONED / "datasources" / "jaeger.yml").read_text()
    made = dashboard.load()
    provisioned = re.findall(r"^\s+uid: (\S+)", text + jaeger, re.MULTILINE)
    assert provisioned == ["prometheus", "jaeger"]
    assert "{name: trace_id, datasourceUid: jaeger, urlDisplayLabel: Trace}" in text
    sources = re.findall(r'"datasource": (\{[^}]*\}|[^\s{]+)', dashboard.FILE.read_text())
    wanted = [{"type": name, "uid": name} for name in provisioned]
    assert len(sources) > 60
    assert [each for each in sources if json.loads(each) not in wanted] == []
    assert {panel["type"] for panel in dashboard.panels(made)} <= BUILT_IN_PANELS
    assert "timeInterval: 5s" in text
    assert "scrape_interval: 5s" in (DEPLOYED / "prometheus.yml").read_text()


def test_panels_have_ids_positions_units_and_descriptions() -> None:
    panels = dashboard.panels(dashboard.load())
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        for cell in cells(panel["gridPos"]):
            assert cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            references = [target["refId"] for target in panel["targets"]]
            assert len(set(references)) == len(references), panel["title"]


def cells(place: dict[str, Any]) -> list[tuple[int, int]]:
    """The squares of the grid, 24 wide, that a panel covers."""
    columns = range(place["x"], place["x"] + place["w"])
    assert columns.stop <= 24
    return list(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


# Alerts in real life


@needs_prometheus
def test_only_alerts_with_a_cause_fire(stack: Stack) -> None:
    provoked = {"TorchlaneErrors", "TorchlaneItemsFail", "TorchlaneDeadlinesMissed"}
    firing = stack.prometheus.query('ALERTS{alertstate="firing"}', stack.end_s)
    names = {series.labels["alertname"] for series in firing}
    assert provoked <= names
    assert names <= provoked | WHERE_SLOW
    [shown] = [q for q in dashboard.queries(dashboard.load()) if q.panel == "Alerts firing"]
    counted = stack.prometheus.query(shown.expression, stack.end_s)[0].values
    assert counted == (len(firing),)


@needs_prometheus
def test_a_hung_server_alerts_until_it_recovers(stack: Stack) -> None:
    states = stack.prometheus.alert_states
    assert states("TorchlaneDown") == set()
    stack.server.signal(signal.SIGSTOP)
    try:
        stack.prometheus.wait_until(lambda: "firing" in states("TorchlaneDown"), "an alert")
    finally:
        stack.server.signal(signal.SIGCONT)
    stack.prometheus.wait_until(lambda: states("TorchlaneDown") == set(), "the all-clear")


# The document


def test_every_alert_is_documented() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    assert re.findall(r"^\| `(Torchlane\w+)`", text, re.MULTILINE) == ALERTS
