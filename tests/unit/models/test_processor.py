"""This processor's identity on x86, on ARM, and where it is not reported."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.processor import (
    Processor,
    cpu_flags,
    cpu_name,
    machine,
    this_cpu,
)

XEON = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) CPU @ 2.00GHz
stepping\t: 3
flags\t\t: fpu sse4_2 avx2 avx512f
bugs\t\t: spectre_v1

processor\t: 1
model name\t: another one
flags\t\t: none
"""
GRAVITON = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1

processor\t: 1
Features\t: none
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Clear the cached identity of this machine, before and after."""
    for known in (cpu_name, cpu_flags):
        known.cache_clear()
    yield
    for known in (cpu_name, cpu_flags):
        known.cache_clear()


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where /proc/cpuinfo is said to be; not there yet."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr("models.processor.CPUINFO", path)
    monkeypatch.setattr(platform, "machine", lambda: "m64")
    monkeypatch.setattr(platform, "processor", lambda: "")
    return path


class TestCpu:
    def test_x86_has_a_name_and_numbers(self, cpuinfo: Path) -> None:
        cpuinfo.write_text(XEON)
        wanted = "Intel(R) Xeon(R) CPU @ 2.00GHz (m64), cpu family 6, model 85, stepping 3"
        assert cpu_name() == wanted
        assert cpu_flags() == {"fpu", "sse4_2", "avx2", "avx512f"}

    def test_arm_has_only_numbers(self, cpuinfo: Path) -> None:
        cpuinfo.write_text(GRAVITON)
        numbers = "CPU implementer 0x41, CPU variant 0x1, CPU part 0xd40, CPU revision 1"
        assert cpu_name() == f"unknown CPU (m64), {numbers}"
        assert cpu_flags() == {"fp", "asimd", "sve"}

    @pytest.mark.parametrize(
        ("text", "change"),
        [
            (XEON, ("model\t\t: 85", "model\t\t: 106")),
            (XEON, ("stepping\t: 3", "stepping\t: 7")),  # Skylake and Cascade Lake
            (GRAVITON, ("0xd40", "0xd0c")),  # Neoverse V1 and N1
        ],
    )
    def test_processors_with_equal_names_still_differ(
        self, cpuinfo: Path, text: str, change: tuple[str, str]
    ) -> None:
        cpuinfo.write_text(text)
        one = this_cpu(threads=1)
        cpu_name.cache_clear()
        cpuinfo.write_text(text.replace(*change))
        assert this_cpu(threads=1) != one

    def test_missing_cpuinfo_gives_an_unknown_cpu(self, cpuinfo: Path) -> None:
        assert cpu_name() == "unknown CPU (m64)"
        assert cpu_flags() == frozenset()

    def test_this_machine_has_a_name(self) -> None:
        here = this_cpu(threads=2)
        assert (here.kind, here.threads) == ("cpu", 2)
        assert machine() in here.name


class TestProcessor:
    @pytest.mark.parametrize(
        ("processor", "text"),
        [
            (Processor(kind="cpu", name="A CPU", threads=1), "A CPU, 1 thread"),
            (Processor(kind="cpu", name="A CPU", threads=3), "A CPU, 3 threads"),
            (Processor(kind="cuda", name="A GPU", threads=1), "A GPU"),
        ],
    )
    def test_it_prints_readable_text(self, processor: Processor, text: str) -> None:
        assert str(processor) == text
