"""Metrics of several processes: each process writes its values to files, and a scrape merges them.

A file belongs to a worker's index, not to its process: a restarted worker continues the counts of
the one that died. A process writes once a second and when it ends; the scraped process also writes
at that moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from prometheus_client import Counter, Gauge, ProcessCollector, values
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from app.metrics import Metrics, T
from app.metrics.counters import LABELS, LOG_LINES_DROPPED
from app.metrics.gauges import MODEL_GAUGES, MODEL_INFO, ModelGauges
from app.metrics.tally import TotalTally
from app.processes.shared_values import OwnValues, merged
from app.shared_file import SharedFile
from app.types import ModelId

WRITE_S = 1.0  # between two writes; a killed worker loses the counts of up to this time
DEVICES_S = 5.0  # the same for slower sources: the system and device drivers
NOTHING_LEFT = ModelGauges(*(lambda: 0.0 for _ in ModelGauges._fields))
PROCESS_CPU = "process_cpu_seconds"
# Descriptors are limited per process, so the process closest to its limit counts. The latest start
# shows how long all processes have been running, and changes when a worker is restarted.
PROCESS_GAUGES: dict[str, Literal["livesum", "livemax", "livemin"]] = {
    "process_virtual_memory_bytes": "livesum",
    "process_resident_memory_bytes": "livesum",
    "process_start_time_seconds": "livemax",
    "process_open_fds": "livemax",
    "process_max_fds": "livemin",
}


def _share_values(file: SharedFile) -> OwnValues:
    """Keep the values of all metrics created from now on for this file."""
    own = OwnValues(file)
    values.ValueClass = own.value
    return own


class _Process:
    """The system's metrics of this process, shared with all processes."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(name, "", registry=None, multiprocess_mode=mode)
            for name, mode in PROCESS_GAUGES.items()
        }
        self._cpu = Counter(PROCESS_CPU, "", registry=None)
        self._cpu_s = 0.0  # CPU seconds already added to the counter

    def refresh(self, families: Iterable[Metric]) -> None:
        """Write the output of a ProcessCollector."""
        for family in families:
            for sample in family.samples:
                if family.name == PROCESS_CPU:
                    self._cpu.inc(sample.value - self._cpu_s)
                    self._cpu_s = sample.value
                elif family.name in self._gauges:
                    self._gauges[family.name].set(sample.value)


class _Writer:
    """Calls `write` every `seconds` and once more when closed; created on the event loop."""

    def __init__(self, write: Callable[[], None], seconds: float) -> None:
        self._write = write
        self._seconds = seconds
        self._again()

    def close(self) -> None:
        """Write once more and stop."""
        self._timer.cancel()
        self._write()

    def _again(self) -> None:
        # All processes write when a second of the clock begins, so that a reader in the middle of
        # one, such as GET /live, finds the counts of one moment.
        wait_s = self._seconds - time.time() % self._seconds
        wait_s += self._seconds if wait_s < self._seconds / 2 else 0.0  # timers may be early
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._again)
        self._write()


class SupervisorMetrics:
    """The parent's metrics: its memory, CPU time, descriptors and log.

    Args:
        file: its values.
        dropped: returns how many lines the log has dropped.
    """

    def __init__(self, file: SharedFile, dropped: Callable[[], int]) -> None:
        self._own = _share_values(file)
        self._process = _Process()
        self._log = TotalTally(dropped, Counter(LOG_LINES_DROPPED, "", registry=None).inc)
        self._collector = ProcessCollector(registry=None)
        self.close = _Writer(self._refresh, DEVICES_S).close

    def _refresh(self) -> None:
        self._process.refresh(self._collector.collect())
        self._log.flush()
        self._own.write()


class SharedMetrics(Metrics):
    """The metrics of one worker, which can also read those of all workers.

    Args:
        index: the worker's index.
        files: the values of each worker, and others to merge with them.
    """

    def __init__(self, index: int, files: Sequence[SharedFile]) -> None:
        self._own = _share_values(files[index])
        self._files = files
        super().__init__()
        self._process = _Process()
        self._system = ProcessCollector(registry=None)
        self._served = Gauge(
            MODEL_INFO,
            "",
            (*LABELS, "variant", "precision"),
            registry=None,
            multiprocess_mode="livemax",
        )
        self._declared: Sequence[Metric] = ()
        self._served_once: set[tuple[tuple[str, str], ...]] = set()
        of_devices = self.of_devices.values()
        self._quick = [gauge for gauge in self.gauges.values() if gauge not in of_devices]

    def remove_model(self, model: ModelId) -> None:
        """See `Metrics`; written values cannot be removed, so they are set to zero and left out."""
        self.add_model(model, NOTHING_LEFT)

    def open(self) -> None:
        """Start writing values; called on the event loop."""
        self._writers = (
            _Writer(self.write_down, WRITE_S),
            _Writer(self.write_devices, DEVICES_S),
        )

    def close(self) -> None:
        """Write values for the last time."""
        try:
            for writer in self._writers:
                writer.close()
        finally:  # if a gauge raises an error, no count is lost
            super().close()
            self._own.write()

    async def scraped_as(self, accept: str) -> tuple[bytes, str]:
        self.write_devices()
        return await super().scraped_as(accept)

    async def read(self, how: Callable[[Collector], T]) -> T:
        """See `Metrics`; the metrics are those of all processes, read in a thread.

        Values from slow sources are those that `write_devices` wrote last.
        """
        self.write_down()
        if not self._declared:  # the set of metrics is fixed; only values change
            self._declared = tuple(map(_empty, self.registry.collect()))
        return await asyncio.to_thread(how, _Merged(self._declared, self._files))

    def write_down(self) -> None:
        """Write the counts and gauges of this process for the next scrape of any process."""
        self._tallies.flush()
        self.tasks.set(len(asyncio.all_tasks()))
        for gauge in self._quick:
            _keep(gauge, gauge.collect())
        for labels in self._served_once:  # a value cannot be removed; _Merged leaves out zeros
            self._served.labels(**dict(labels)).set(0)
        for family in self._model_info.collect():
            _keep(self._served, [family])
            self._served_once.update(tuple(sample.labels.items()) for sample in family.samples)
        self._own.write()

    def write_devices(self) -> None:
        """Write the values from slow sources: the system and the device drivers."""
        self._process.refresh(self._system.collect())
        for gauge in self.of_devices.values():
            _keep(gauge, gauge.collect())


def _keep(gauge: Gauge, families: Iterable[Metric]) -> None:
    for family in families:
        for sample in family.samples:
            (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)


def _empty(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type)


class _Merged(Collector):
    """The values of all processes.

    Args:
        declared: every metric, without samples; metrics without counts stay empty.
        files: the values of all processes.
    """

    def __init__(self, declared: Sequence[Metric], files: Sequence[SharedFile]) -> None:
        self._declared = declared
        self._files = files

    def collect(self) -> Iterator[Metric]:
        """Each metric once, with the samples of all processes combined by its mode."""
        found = merged(self._files)
        served = {_version(each) for each in found.get(MODEL_INFO, []) if each.value}
        for declared in self._declared:
            family = _empty(declared)
            samples = found.get(family.name, [])
            if family.name == MODEL_INFO:
                samples = [each for each in samples if each.value]
            elif family.name in MODEL_GAUGES:
                samples = [each for each in samples if _version(each) in served]
            family.samples = samples
            yield family


def _version(sample: Sample) -> tuple[str, ...]:
    return tuple(sample.labels[label] for label in LABELS)
