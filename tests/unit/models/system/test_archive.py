"""Archives of torch and zipfile are accepted; harmful ones are not."""

from __future__ import annotations

import io
import random
import stat
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from models.system import archive
from models.system.archive import END, END64, LOCATOR, ArchiveError, check_archive

CENTRAL = b"PK\x01\x02"


def zipped(*names: str, content: bytes = b"content", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name in names:
            file.writestr(name, content)
    return buffer.getvalue()


def patched(data: bytes, offset: int, value: bytes) -> bytes:
    """Other bytes in the archive's directory, counted from its first record."""
    at = data.index(CENTRAL) + offset
    return data[:at] + value + data[at + len(value) :]


def of_kind(mode: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        entry = zipfile.ZipInfo("a/thing")
        entry.external_attr = (mode | 0o644) << 16
        file.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


def rejected(data: bytes) -> str:
    with pytest.raises(ArchiveError) as caught:
        check_archive(io.BytesIO(data), "it.pt")
    assert str(caught.value).startswith("it.pt ")
    return str(caught.value)


class TestAccepted:
    def test_names_are_sorted_and_the_file_is_rewound(self) -> None:
        file = io.BytesIO(zipped("b/c.txt", "a.txt", "b/"))
        file.seek(5)
        assert check_archive(file, "it") == ["a.txt", "b/", "b/c.txt"]
        assert file.tell() == 0

    def test_archives_written_by_torch(self) -> None:
        traced, state = io.BytesIO(), io.BytesIO()
        trace: Callable[..., Any] = torch.jit.trace  # untyped in torch
        torch.jit.save(trace(nn.Linear(2, 2), torch.zeros(1, 2)), traced)
        torch.save(nn.Linear(2, 2).state_dict(), state)
        for file in (traced, state):
            assert any(name.endswith("data.pkl") for name in check_archive(file, "it"))

    def test_a_network_of_many_layers(self) -> None:
        """The code's text compresses better than anything else that torch writes."""
        layers = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(100)]
        script: Callable[..., Any] = torch.jit.script
        frozen, whole = io.BytesIO(), io.BytesIO()
        scripted = script(nn.Sequential(*layers).eval())
        torch.jit.save(scripted, whole)
        torch.jit.save(torch.jit.freeze(scripted), frozen)
        for file in (whole, frozen):
            names = check_archive(file, "it")
            assert any("/code/" in name for name in names)
            with zipfile.ZipFile(file) as archived:
                entries = archived.infolist()
            deflated = [entry for entry in entries if entry.compress_type]
            assert all(entry.filename.split("/")[1] == "code" for entry in deflated)
            assert sum(entry.file_size for entry in entries) < 3 * len(file.getvalue())

    @pytest.mark.parametrize("name", ["a/x/0", "a/code/data/0.py", "data/0"])
    def test_only_tensors_must_be_stored(self, name: str) -> None:
        assert check_archive(io.BytesIO(zipped(name)), "it") == [name]

    def test_non_torch_archives_may_deflate_anything(self) -> None:
        assert check_archive(io.BytesIO(zipped("a/data/0")), "it", of_torch=False)

    def test_small_files_may_have_any_compression_ratio(self) -> None:
        assert check_archive(io.BytesIO(zipped("zeros", content=bytes(10_000_000))), "it")


class TestNoArchive:
    @pytest.mark.parametrize("data", [b"", b"hello", b"PK", b"PK\x03\x04 and no more"])
    def test_other_bytes(self, data: bytes) -> None:
        assert "it.pt is not a zip archive: " in rejected(data)

    def test_one_with_a_prefix(self) -> None:
        assert "does not begin as one" in rejected(b"#!/bin/sh\n" + zipped("a"))

    def test_damage_raises_only_archive_errors(self) -> None:
        whole, draw, count = zipped("a/b", "c"), random.Random(4), 0
        for _ in range(2000):
            data = bytearray(whole[: draw.choice((len(whole), draw.randrange(len(whole))))])
            for _ in range(draw.choice((0, 1, 3))):
                if data:
                    data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                check_archive(io.BytesIO(bytes(data)), "it")
            except ArchiveError:
                count += 1
        assert count > 0


class TestPaths:
    @pytest.mark.parametrize(
        "name",
        ["/etc/passwd", "../up", "a/../../up", "a/..", "..\\up", "C:/up", "C:up", ".", "a\nb"],
    )
    def test_that_lead_out_of_the_folder(self, name: str) -> None:
        message = rejected(zipped("fine", name))
        assert message == f"it.pt contains {name!r}, a path that leads out of its folder"

    def test_that_contain_a_zero_byte(self) -> None:
        assert "'a\\x00.txt'" in rejected(zipped("a/.txt").replace(b"a/.txt", b"a\0.txt"))

    @pytest.mark.parametrize("other", ["one/file", "./one/file", "one//file", "one/file/"])
    def test_that_occur_twice(self, other: str) -> None:
        stand_in = "x" * len(other)
        data = zipped("one/file", stand_in).replace(stand_in.encode(), other.encode())
        assert f"it.pt contains {other!r} twice" in rejected(data)

    @pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK])
    def test_of_links_and_devices(self, kind: int) -> None:
        assert rejected(of_kind(kind)) == "it.pt contains 'a/thing', which is a link or a device"


class TestContents:
    def test_that_are_encrypted(self) -> None:
        assert "'secret', which is encrypted" in rejected(patched(zipped("secret"), 8, b"\x01"))

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_that_use_other_compression_methods(self, method: int) -> None:
        assert f"'a', packed by method {method}" in rejected(zipped("a", method=method))

    @pytest.mark.parametrize("name", ["a/data/0", "a/constants/1", "a/data/m/x.so", "x.so"])
    def test_tensors_and_libraries_that_are_deflated(self, name: str) -> None:
        assert f"it.pt contains {name!r} deflated" in rejected(zipped(name))
        assert check_archive(io.BytesIO(zipped(name, method=zipfile.ZIP_STORED)), "it") == [name]

    def test_a_bomb_with_its_true_size(self) -> None:
        data = zipped("zeros", content=bytes(40_000_000))
        most = archive.FREE_BYTES + 10 * len(data)
        assert f"would unpack to 40,000,000 bytes from {len(data):,}; at most {most:,}" in rejected(
            data
        )
        with pytest.raises(ArchiveError, match="would unpack"):
            check_archive(io.BytesIO(data), "it.mar", of_torch=False)

    def test_a_bomb_with_a_false_packed_size(self) -> None:
        """An archive whose entries share their bytes, so that they exceed the file's size."""
        three_gigabytes = (3_000_000_000).to_bytes(4, "little")
        bomb = patched(zipped("a"), 20, three_gigabytes + three_gigabytes)
        assert "would unpack to 3,000,000,000 bytes from 1" in rejected(bomb)

    def test_too_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "MAX_ENTRIES", 2)
        assert check_archive(io.BytesIO(zipped("a", "b")), "it")
        assert rejected(zipped("a", "b", "c")) == "it.pt has 3 entries; at most 2 are allowed"


def _two_directories(shown: bytes, hidden: bytes) -> bytes:
    """A file that ends in two ZIP64 records: the nearer one names `shown`, the locator `hidden`."""
    body, directory, count = _parts(hidden)
    _, clean_directory, clean_count = _parts(shown)
    out = bytearray(body + directory)
    real = len(out)
    out += END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(body))
    start = len(out)
    out += clean_directory
    size = len(clean_directory)
    out += END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, clean_count, clean_count, size, start)
    out += LOCATOR.pack(b"PK\6\7", 0, real, 1)
    return bytes(out) + END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def _parts(data: bytes) -> tuple[bytes, bytes, int]:
    fields = END.unpack(data[-END.size :])
    return data[: fields[6]], data[fields[6] : fields[6] + fields[5]], fields[4]


def test_file_with_two_directories_is_refused() -> None:
    shown, hidden = zipped("a"), zipped("a", "../../evil")
    with pytest.raises(ArchiveError, match="two directories"):
        check_archive(io.BytesIO(_two_directories(shown, hidden)), "m.pt")


@pytest.mark.parametrize("junk", [b"x", b"PK\5\6" + bytes(18), bytes(100)])
def test_data_around_the_end_record_is_refused(junk: bytes) -> None:
    data = zipped("a")
    with pytest.raises(ArchiveError, match=r"m\.pt"):
        check_archive(io.BytesIO(data + junk), "m.pt")
    with pytest.raises(ArchiveError, match="between its directory and its end"):
        check_archive(io.BytesIO(data[: -END.size] + junk + data[-END.size :]), "m.pt")
