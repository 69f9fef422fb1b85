"""Changes of the alerts and recording rules that `alerts_test.yml` has to notice."""

from __future__ import annotations

from typing import TypeAlias

# The alert, the file of deploy/prometheus, what stands there once, and what instead.
Change: TypeAlias = tuple[str, str, str, str]

# Those of one round, each of another alert, are made together: promtool takes a second each time.
ROUNDS: tuple[tuple[Change, ...], ...] = (
    (
        ("TorchlaneErrors", "alerts.yml", '"internal|backend', '"backend'),
        ("TorchlaneItemsFail", "alerts.yml", 'outcome=~"backend_failed|non', 'outcome=~"non'),
        ("TorchlaneSlow", "recording.yml", ', outcome="ok"', ""),
        ("TorchlaneQueueWaitHigh", "alerts.yml", "p95_5m > 0.1", "p95_5m > 0.2"),
        ("TorchlaneQueueFilling", "alerts.yml", "limit_items > 0.8", "limit_items > 0.5"),
        ("TorchlaneFileDescriptors", "alerts.yml", "max_fds > 0.8", "max_fds > 0.5"),
        ("TorchlaneOverloaded", "alerts.yml", '"overloaded"} > 0.01', '"overloaded"} > 0.001'),
        ("TorchlaneDeadlinesMissed", "alerts.yml", 'exceeded"} > 0.01', 'exceeded"} > 0.001'),
        ("TorchlaneMemoryGrows", "alerts.yml", "> 256 *", "> 128 *"),
        ("TorchlaneRestarts", "alerts.yml", "[15m]) > 2", "[15m]) > 3"),
        ("TorchlaneNotReady", "alerts.yml", "== 0\n        for: 5m", "== 0\n        for: 2m"),
        ("TorchlaneModelNotServed", "alerts.yml", "} > 0\n", "} > 1\n"),
    ),
    (
        ("TorchlaneErrors", "alerts.yml", "|backend_failed|", "|"),
        ("TorchlaneItemsFail", "alerts.yml", "          > 0.01", "          > 0.001"),
        ("TorchlaneSlow", "alerts.yml", "p99_5m > 0.25", "p99_5m > 0.2"),
        ("TorchlaneQueueWaitHigh", "recording.yml", "(0.95,", "(0.99,"),
        ("TorchlaneQueueFilling", "alerts.yml", "limit_items > 0.8", "limit_items > 0.9"),
        ("TorchlaneFileDescriptors", "alerts.yml", "max_fds > 0.8", "max_fds > 0.9"),
        ("TorchlaneOverloaded", "alerts.yml", '"overloaded"} > 0.01', '"overloaded"} > 0.02'),
        ("TorchlaneDeadlinesMissed", "alerts.yml", 'exceeded"} > 0.01', 'exceeded"} > 0.02'),
        ("TorchlaneMemoryGrows", "alerts.yml", "> 256 *", "> 512 *"),
        ("TorchlaneRestarts", "alerts.yml", "[15m]) > 2", "[15m]) > 1"),
        ("TorchlaneNotReady", "alerts.yml", "== 0\n        for: 5m", "== 0\n        for: 6m"),
        ("TorchlaneModelNotServed", "alerts.yml", "> 0\n        for: 5m", "> 0\n        for: 4m"),
    ),
    (
        (
            "TorchlaneErrors",
            "alerts.yml",
            'failed|non_finite_output"\n          }) >',
            'failed"}) >',
        ),
        ("TorchlaneItemsFail", "alerts.yml", "          > 0.01", "          > 0.02"),
        ("TorchlaneSlow", "alerts.yml", "p99_5m > 0.25", "p99_5m > 0.3"),
        ("TorchlaneQueueWaitHigh", "alerts.yml", "p95_5m > 0.1", "p95_5m > 0.05"),
        ("TorchlaneQueueFilling", "alerts.yml", "limit_bytes > 0.8", "limit_bytes > 0.5"),
        ("TorchlaneMemoryGrows", "alerts.yml", "> 8 * 3600", "> 9 * 3600"),
    ),
    (
        ("TorchlaneErrors", "alerts.yml", "          }) > 0.01", "          }) > 0.001"),
        ("TorchlaneSlow", "recording.yml", "(0.99,", "(0.95,"),
        ("TorchlaneQueueFilling", "alerts.yml", "limit_bytes > 0.8", "limit_bytes > 0.9"),
    ),
)
