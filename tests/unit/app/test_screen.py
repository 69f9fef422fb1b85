"""The lines that a person sees instead of the log's events."""

from __future__ import annotations

from collections.abc import Mapping

from structlog import DropEvent

from app.screen import LINE, Screen, process_age_s

LOADED = {
    "event": "model_loaded",
    "model": "digits/1",
    "serves": "plan:bfloat16",
    "forms": ["compiled", "script, optimized at load"],
    "seconds": 0.83,
}
LISTENING = {"event": "listening", "url": "http://127.0.0.1:8000/"}
STOPPING = (
    "Stopping (SIGINT): accepted requests are answered, for at most 30 s; "
    "a second signal ends at once"
)
NOT_LOADED = {
    "event": "model_not_loaded",
    "model": "bad/2",
    "problem": "bad/2: script.pt is broken",
}


class Seen:
    """A screen, and what it prints."""

    def __init__(self, *, colors: bool = False, takes: bool | None = None) -> None:
        self.passed: list[str] = []
        self._takes = bool(takes)
        pass_on = None if takes is None else self._pass_on
        self._screen = Screen(colors=colors, pass_on=pass_on, age_s=lambda: 1.23)

    def _pass_on(self, level: str, event: Mapping[str, object]) -> bool:
        self.passed.append(f"{level} {event['event']}")
        return self._takes

    def of(self, *events: Mapping[str, object], method: str = "info") -> list[object]:
        """The line of each event, or the event if it stays one, without those that are dropped."""
        shown: list[object] = []
        for event in events:
            try:
                changed = self._screen(None, method, dict(event))
            except DropEvent:
                continue
            shown.append(changed.get(LINE, changed["event"]))
        return shown


def test_a_start_and_a_stop() -> None:
    draining = {"event": "draining", "signal": "SIGINT", "budget_s": 30.0}
    lines = Seen().of(
        {"event": "starting", "runs": "machine code"},
        {"event": "workers_chosen", "workers": 2, "reason": "2 cores"},
        {"event": "measuring_cpu_layout", "model": "digits/1", "layouts": [], "reason": "none"},
        LISTENING,
        {"event": "grpc_listens", "address": "127.0.0.1", "port": 8001},
        LOADED,
        LOADED | {"model": "minilm/3", "serves": "variant:script", "forms": ["script"]},
        {
            "event": "handler_loaded",
            "handler": "shop/1",
            "calls": ["digits", "minilm"],
            "processes": 2,
            "seconds": 0.3,
        },
        {"event": "ready", "workers": 2},
        draining,
        {"event": "stopped"},
    )
    assert lines == [
        "Timing threads and replicas with digits 1: some seconds",
        "digits 1: compiled + script optimized at load (bfloat16) in 0.8 s",
        "minilm 3: script in 0.8 s",
        "shop 1: handler, 2 processes, calls digits, minilm, in 0.3 s",
        (
            "Ready in 1.2 s: http://127.0.0.1:8000 "
            "(digits 1, minilm 3, shop 1; 2 workers; gRPC on port 8001)"
        ),
        STOPPING,
    ]


def test_a_busy_machine_is_told() -> None:
    event = {
        "event": "cpu_layout_measured_under_load",
        "others": 0.5,
        "chosen": "2 x 1",
        "instead": "start when the machine is idle",
    }
    assert Seen().of(event, method="warning") == [
        (
            "Warning: the machine was busy, so 2 x 1 (replicas x threads) may not be the fastest; "
            "start when the machine is idle"
        )
    ]


def test_the_last_line_lists_few_of_many_models_and_no_retired_one() -> None:
    seen = Seen()
    seen.of(LISTENING, *(LOADED | {"model": f"m{number}/1"} for number in range(8)))
    retired = {"event": "model_retired", "model": "m0/1"}
    assert seen.of(retired) == ["m0 1: no longer served"]
    (line,) = seen.of({"event": "ready"})
    assert str(line).endswith("(m1 1, m2 1, m3 1, m4 1, m5 1 and 2 more)")


def test_models_on_demand_are_counted() -> None:
    cold = [{"event": "model_on_demand", "model": f"m/{number}"} for number in range(1, 4)]
    retired = {"event": "model_retired", "model": "m/1"}
    warmed = {"event": "model_warmed", "model": "m/2"}
    lines = Seen().of(*cold, retired, warmed, LISTENING, {"event": "ready"})
    assert lines[-1] == "Ready in 1.2 s: http://127.0.0.1:8000 (2 on demand)"
    assert len(lines) == 2


def test_a_server_without_models_says_what_to_do() -> None:
    reasons = ["the repository has no models; export one"]
    lines = Seen().of(
        LISTENING,
        {"event": "not_ready", "reasons": reasons},
        {"event": "repository_empty", "problem": "/a contains no MODEL/VERSION; export one"},
        {"event": "not_ready", "workers": [0, 1]},  # the parent's, whose workers gave the reasons
        method="error",
    )
    assert lines == [
        "Not ready (http://127.0.0.1:8000): the repository has no models; export one",
        "/a contains no MODEL/VERSION; export one",
    ]


def test_a_handler_that_cannot_work_has_a_line() -> None:
    missing = {"event": "handler_not_ready", "handler": "shop/1", "problem": "it needs digits"}
    lines = Seen().of(missing, {"event": "handler_ready", "handler": "shop/1"}, method="error")
    assert lines == ["shop 1: not ready: it needs digits", "shop 1: ready again"]


def test_only_a_worker_that_replaces_another_has_a_line() -> None:
    loaded = {"event": "worker_loaded", "worker": 1, "ready": True}
    lines = Seen().of(LISTENING, loaded, {"event": "ready"}, loaded, loaded | {"ready": False})
    assert lines[1:] == ["Worker 1 is ready", "Worker 1 is not ready"]


def test_only_details_of_the_level_info_are_hidden() -> None:
    detail = {"event": "cpu_layout_not_measured", "reason": "no model"}
    assert Seen().of(detail) == []
    assert Seen().of(detail, method="warning") == ["cpu_layout_not_measured"]
    assert Seen().of({"event": "api_keys_changed"}) == ["api_keys_changed"]


def test_an_error_that_nobody_expected_keeps_its_traceback() -> None:
    seen = Seen()
    assert seen.of(NOT_LOADED, method="error") == ["bad 2: not loaded: script.pt is broken"]
    assert seen.of(NOT_LOADED | {"exc_info": True}, method="error") == ["model_not_loaded"]


def test_a_line_stays_one_line_whatever_a_file_is_called() -> None:
    (line,) = Seen().of(NOT_LOADED | {"problem": "a\n\x1b[2Jé.pt"}, method="error")
    assert line == r"bad 2: not loaded: a\n\x1b[2Jé.pt"


def test_a_worker_leaves_the_lines_to_its_parent() -> None:
    seen = Seen(takes=True)
    ready = {"event": "ready", "models": ["digits/1"]}
    assert seen.of(LOADED, ready, {"event": "draining"}, {"event": "api_keys_changed"}) == [
        "api_keys_changed"
    ]
    assert seen.passed == ["info model_loaded"]


def test_colors_are_for_what_failed_and_for_the_address() -> None:
    seen = Seen(colors=True)
    assert seen.of(LOADED) == ["digits 1: compiled + script optimized at load (bfloat16) in 0.8 s"]
    failed, ready = seen.of(NOT_LOADED, LISTENING, {"event": "ready"})
    assert str(failed).startswith("\x1b[31mbad 2")
    assert str(ready).startswith("\x1b[1mReady")
    assert str(failed)[-4:] == str(ready)[-4:] == "\x1b[0m"


def test_the_age_of_a_process_grows() -> None:
    before = process_age_s()
    assert 0 <= before <= process_age_s() < 24 * 3600


def test_what_comes_from_a_store_has_lines() -> None:
    fetched = {"event": "source_version_fetched", "model": "digits/3"}
    not_seen = {"event": "source_not_seen", "url": "s3://b/m", "problem": "s3://b/m: it is away"}
    assert Seen().of(
        fetched | {"downloaded_bytes": 12_345_678, "seconds": 0.84},
        not_seen | {"serves": "what the cache has"},
    ) == [
        "digits 3: fetched, 12.3 MB in 0.8 s",
        "Warning: s3://b/m was not seen (s3://b/m: it is away); served: what the cache has",
    ]
