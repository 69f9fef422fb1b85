"""What keeps our metrics apart from those of a program that has the server as a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, values
from prometheus_client.core import Metric

PREFIX = "torchlane_"
CREATED = "_created"


class OwnRegistry(CollectorRegistry):
    """A registry without a _created series for each series, which would double a scrape.

    prometheus_client can leave them out itself, but only for all metrics of a program.
    """

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [each for each in family.samples if not each.name.endswith(CREATED)]
            yield family


def keep_in_memory() -> None:
    """Keep our values in memory if the program has PROMETHEUS_MULTIPROC_DIR.

    prometheus_client then keeps values in files of that folder, from where the program's own scrape
    would return ours too: gauges that are read at a scrape as 0.
    """
    of_program: Any = values.ValueClass
    if not getattr(of_program, "_multiprocess", False):
        return

    def value(kind: str, family: str, *more: Any, **options: Any) -> Any:
        make = values.MutexValue if family.startswith(PREFIX) else of_program
        return make(kind, family, *more, **options)

    values.ValueClass = value
