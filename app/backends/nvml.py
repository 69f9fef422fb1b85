"""A GPU's memory, temperature and utilization as its driver reports them, if NVML works."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pynvml
import structlog
import torch

from app.types import Device

LOG = structlog.get_logger(__name__)

READING_TTL_S = 4.0  # as drivers may be slow; less than the workers' write interval

# Called at each scrape.
Reading = Callable[[], float]


def readings_of(
    device: Device,
    library: ModuleType = pynvml,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Reading]:
    """The readings of a device; empty without NVML, or if NVML does not know the device.

    A part of a GPU (MIG) has its own memory, but usually no utilization.

    Args:
        device: a CUDA device; others have no readings.
        library: NVML.
        clock: measures the age of a reading.

    Returns:
        some of `memory_used_bytes`, `memory_bytes`, `temperature_celsius` and `utilization_ratio`
        (of the last moments, 0 to 1). A reading that fails later is NaN.
        The driver is queried again after `READING_TTL_S`.
    """
    if device.kind != "cuda":
        return {}
    try:
        library.nvmlInit()
        handle = _handle(device, library)
    except library.NVMLError as error:
        LOG.info("device_not_watched", device=str(device), reason=str(error))
        return {}
    queries: Mapping[str, Reading] = {
        "memory_used_bytes": lambda: library.nvmlDeviceGetMemoryInfo(handle).used,
        "memory_bytes": lambda: library.nvmlDeviceGetMemoryInfo(handle).total,
        "temperature_celsius": lambda: library.nvmlDeviceGetTemperature(
            handle, library.NVML_TEMPERATURE_GPU
        ),
        "utilization_ratio": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    }
    readings = {name: _cached(ask, library, clock) for name, ask in queries.items()}
    return {name: reading for name, reading in readings.items() if not math.isnan(reading())}


def _cached(ask: Reading, library: ModuleType, clock: Callable[[], float]) -> Reading:
    """The driver's last answer; an old answer is queried again."""
    value, asked_at = math.nan, -math.inf

    def reading() -> float:
        nonlocal value, asked_at
        if clock() - asked_at >= READING_TTL_S:
            try:
                value = float(ask())
            except library.NVMLError:  # missing on this device, or lost: a scrape must not fail
                value = math.nan
            asked_at = clock()
        return value

    return reading


def _handle(device: Device, library: ModuleType) -> Any:
    """Find the device by UUID: NVML numbers all devices of the machine, CUDA only visible ones."""
    uuid = str(torch.cuda.get_device_properties(device.index).uuid)
    try:
        return library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except library.NVMLError_NotFound:
        return library.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
