"""GPU readings from the driver, and their absence."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from app.backends.nvml import READING_TTL_S, readings_of
from app.types import Device

GPU = Device("cuda", 1)
UUID = "01234567-89ab-cdef-0123-456789abcdef"
ALL = {"memory_used_bytes", "memory_bytes", "temperature_celsius", "utilization_ratio"}


class Driver(ModuleType):
    """NVML as far as it is asked, of one device."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, known: str = f"GPU-{UUID}") -> None:
        super().__init__("driver")
        self.known = known
        self.used, self.busy = 3_000, 40
        self.silent: set[str] = set()
        self.is_there = True

    def nvmlInit(self) -> None:
        if not self.is_there:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=self.answer("memory", self.used, handle), total=80_000)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> Any:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self.answer("temperature", 61, handle)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=self.answer("utilization", self.busy, handle), memory=7)

    def answer(self, what: str, value: int, handle: str) -> int:
        assert handle == "handle"
        if what in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value


@pytest.fixture(autouse=True)
def _visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(index: int) -> Any:
        assert index == GPU.index
        return SimpleNamespace(uuid=UUID)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


@pytest.mark.parametrize("known", [f"GPU-{UUID}", f"MIG-{UUID}"])
def test_old_readings_are_refreshed(known: str) -> None:
    driver, now = Driver(known), 0.0
    readings = readings_of(GPU, driver, lambda: now)
    assert {name: read() for name, read in readings.items()} == {
        "memory_used_bytes": 3_000,
        "memory_bytes": 80_000,
        "temperature_celsius": 61,
        "utilization_ratio": 0.4,
    }
    driver.used, driver.busy = 4_000, 100
    now = READING_TTL_S - 0.1
    assert readings["memory_used_bytes"]() == 3_000
    now = READING_TTL_S
    assert readings["memory_used_bytes"]() == 4_000
    assert readings["utilization_ratio"]() == 1.0


def test_unsupported_readings_are_omitted() -> None:
    driver = Driver()
    driver.silent = {"utilization"}
    assert readings_of(GPU, driver).keys() == ALL - {"utilization_ratio"}


def test_failing_reading_becomes_nan() -> None:
    driver, now = Driver(), 0.0
    readings = readings_of(GPU, driver, lambda: now)
    driver.silent, now = {"temperature"}, READING_TTL_S
    assert math.isnan(readings["temperature_celsius"]())
    assert readings["memory_bytes"]() == 80_000


def test_missing_driver_or_device_gives_no_readings() -> None:
    driver = Driver()
    driver.is_there = False
    assert readings_of(GPU, driver) == {}
    assert readings_of(GPU, Driver("GPU-another")) == {}
    assert readings_of(Device("cpu"), Driver()) == {}
