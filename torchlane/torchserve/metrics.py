"""What handlers import from `ts.metrics`: all of it is accepted, and nothing is kept.

The server measures its handlers itself.
"""

from __future__ import annotations

import enum
from typing import Any


class MetricTypes(enum.Enum):
    """The kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Dimension:
    """A label of a metric."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value


class Metric:
    """A metric that keeps no values."""

    def add_or_update(self, *_: Any, **__: Any) -> None:
        """Take a value."""

    update = add_or_update


class Metrics:
    """The metrics of a context."""

    def add_metric(self, *_: Any, **__: Any) -> None:
        """Take a value."""

    add_counter = add_time = add_size = add_percent = add_error = add_metric

    def add_metric_to_cache(self, *_: Any, **__: Any) -> Metric:
        """A metric of this name."""
        return Metric()

    get_metric = add_metric_to_cache
