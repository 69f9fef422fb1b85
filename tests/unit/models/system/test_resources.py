"""Usable resources: affinity, quotas, NUMA nodes and memory of simulated kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.system.resources import memory_left_bytes, numa_nodes, resident_bytes, usable_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups of a simulated kernel, for a process that may run on eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("models.system.resources.CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("models.system.resources.CGROUPS", tmp_path / "fs")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


class TestQuota:
    @pytest.mark.parametrize(
        ("limit", "cores"),
        [
            ("max 100000", 8),
            ("200000 100000", 2),
            ("50000 100000", 1),
            ("nonsense", 8),
        ],
    )
    def test_cgroup_version_2(self, groups: Path, limit: str, cores: int) -> None:
        write(groups / "cgroup", "0::/\n")
        write(groups / "fs/cpu.max", limit + "\n")
        assert usable_cores() == cores

    @pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3), ("10000", 1)])
    def test_cgroup_version_1(self, groups: Path, quota: str, cores: int) -> None:
        write(groups / "cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/box\n2:cpuset:/\n0::/\n")
        write(groups / "fs/cpu/box/cpu.cfs_quota_us", quota + "\n")
        write(groups / "fs/cpu/box/cpu.cfs_period_us", "100000\n")
        assert usable_cores() == cores

    def test_tightest_quota_of_all_ancestors_applies(self, groups: Path) -> None:
        write(groups / "cgroup", "0::/pods/mine/container\n")
        write(groups / "fs/pods/mine/container/cpu.max", "max 100000\n")
        write(groups / "fs/pods/mine/cpu.max", "300000 100000\n")
        write(groups / "fs/pods/cpu.max", "600000 100000\n")
        assert usable_cores() == 3

    def test_container_path_of_the_host_is_ignored(self, groups: Path) -> None:
        write(groups / "cgroup", "3:cpu:/docker/0123\n")
        write(groups / "fs/cpu/cpu.cfs_quota_us", "200000\n")
        write(groups / "fs/cpu/cpu.cfs_period_us", "100000\n")
        assert usable_cores() == 2


class TestProcess:
    def test_usable_cores_follow_the_cpu_affinity(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("models.system.resources.CGROUP", tmp_path / "none")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
        assert usable_cores() == 2

    @pytest.mark.parametrize(("count", "wanted"), [(8, 8), (None, 1)])
    def test_all_cores_are_usable_without_affinity(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int | None, wanted: int
    ) -> None:
        monkeypatch.setattr("models.system.resources.CGROUP", tmp_path / "none")
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        assert usable_cores() == wanted

    def test_memory_is_counted_in_bytes(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "statm").write_text("900 7 3 1 0 5 0\n")
        monkeypatch.setattr("models.system.resources.STATM", tmp_path / "statm")
        assert resident_bytes() == 7 * os.sysconf("SC_PAGE_SIZE")
        monkeypatch.setattr("models.system.resources.STATM", tmp_path / "none")
        assert resident_bytes() is None


class TestMemory:
    @pytest.fixture
    def meminfo(self, groups: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        write(groups / "meminfo", "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 1000 kB\n")
        monkeypatch.setattr("models.system.resources.MEMINFO", groups / "meminfo")
        return groups

    def test_no_limit_leaves_the_machines_memory(self, meminfo: Path) -> None:
        write(meminfo / "cgroup", "0::/\n")
        write(meminfo / "fs/memory.max", "max\n")
        assert memory_left_bytes() == 1000 * 1024

    @pytest.mark.parametrize(
        ("version", "names"),
        [
            ("0::/box\n", ("box/memory.max", "box/memory.current", "")),
            (
                "5:memory:/box\n",
                (
                    "memory/box/memory.limit_in_bytes",
                    "memory/box/memory.usage_in_bytes",
                    "total_",
                ),
            ),
        ],
    )
    def test_a_memory_limit_ignores_cached_files(
        self, meminfo: Path, version: str, names: tuple[str, str, str]
    ) -> None:
        limit, used, prefix = names
        write(meminfo / "cgroup", version)
        write(meminfo / "fs" / limit, "800000\n")
        write(meminfo / "fs" / used, "500000\n")
        stat = f"anon 7\n{prefix}inactive_file 60000\n{prefix}active_file 40000\n"
        write((meminfo / "fs" / used).parent / "memory.stat", stat)
        assert memory_left_bytes() == 400_000
        write(meminfo / "fs" / used, "1000000\n")
        assert memory_left_bytes() == 0

    def test_memory_is_unknown_without_statistics(self, meminfo: Path) -> None:
        (meminfo / "meminfo").unlink()
        assert memory_left_bytes() is None


class TestNodes:
    @pytest.mark.parametrize(
        ("lists", "wanted"),
        [
            ({}, ()),
            ({"node0": "0-7"}, ({0, 1, 2, 3, 4, 5, 6, 7},)),
            ({"node0": "0-1,4-5", "node1": "2-3,6-9"}, ({0, 1, 4, 5}, {2, 3, 6, 7})),
            ({"node0": "0-7", "node1": "8-15", "node2": ""}, ({0, 1, 2, 3, 4, 5, 6, 7},)),
            ({"node0": "nonsense", "node1": "3"}, ({3},)),
        ],
    )
    def test_nodes_list_only_the_usable_cores(
        self,
        groups: Path,
        monkeypatch: pytest.MonkeyPatch,
        lists: dict[str, str],
        wanted: tuple[set[int], ...],
    ) -> None:
        monkeypatch.setattr("models.system.resources.NODES", groups / "node")
        for name, cores in lists.items():
            write(groups / "node" / name / "cpulist", cores + "\n")
        assert numa_nodes() == wanted
