"""Headers of WAV and FLAC files: what is read, and that nothing else gets to libsndfile."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from models.inputs.sound_files import MAX_PARTS, SoundError, read_header
from tests.unit.models.sounds import flac, flac_info, riff_chunk, tone, wav, wav_of

TONE = tone(16_000)
EXTENSIBLE = (22, 16, 0, 1)  # bytes that follow, valid bits, speakers, PCM


class TestWav:
    @pytest.mark.parametrize("bits", [8, 16, 24, 32])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_integers(self, bits: int, channels: int) -> None:
        sound = read_header(wav_of(bytes(10 * channels * bits // 8), 8_000, channels, bits))
        assert (sound.rate, sound.channels, sound.frames, sound.floats) == (
            8_000,
            channels,
            10,
            False,
        )

    def test_metadata_is_dropped(self) -> None:
        plain = wav(TONE)
        chunks = riff_chunk(b"LIST", b"INFO" * 99) + riff_chunk(b"odd ", b"x")
        sound = read_header(wav(TONE, chunks=chunks, tail=riff_chunk(b"id3 ", b"y" * 99)))
        assert sound.data == plain == read_header(plain).data

    def test_the_extensible_form_is_written_as_the_plain_one(self) -> None:
        head = struct.pack("<HHIIHH", 0xFFFE, 1, 16_000, 32_000, 2, 16)
        head += struct.pack("<HHIH", *EXTENSIBLE) + bytes(14)
        body = b"WAVE" + riff_chunk(b"fmt ", head) + riff_chunk(b"data", bytes(20))
        sound = read_header(b"RIFF" + struct.pack("<I", len(body)) + body)
        assert sound.data == wav_of(bytes(20))

    @pytest.mark.parametrize(
        ("size", "whole"),
        [
            (0, 0),
            (0, 0xFFFFFFFF),
            (0xFFFFFFFF, 0xFFFFFFFF),
            (0x7FFFF000, 0x7FFFF024),
        ],
    )
    def test_a_stream_without_its_size(self, size: int, whole: int) -> None:
        data = wav_of(bytes(41), size=size)
        assert read_header(data[:4] + struct.pack("<I", whole) + data[8:]).frames == 20

    def test_metadata_behind_no_samples_is_no_sound(self) -> None:
        assert read_header(wav_of(b"", tail=riff_chunk(b"LIST", b"INFO" * 9))).frames == 0

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (wav_of(bytes(20), size=22), "says 22 bytes of samples, and has 20"),
            (wav(TONE)[:40], "ends before its samples"),
            (wav_of(bytes(20), encoding=0x11, bits=4), "encoding 0x0011 with 4 bits"),
            (wav_of(bytes(20), encoding=3, bits=16), "encoding 0x0003 with 16 bits"),
            (wav_of(bytes(20), channels=0), "contradicts itself"),
            (b"RIFF\0\0\0\0WAVE" + riff_chunk(b"data", bytes(20)), "no whole format before its"),
            (wav(TONE, chunks=riff_chunk(b"junk", b"") * MAX_PARTS), "more than 1000 chunks"),
        ],
    )
    def test_refused(self, data: bytes, why: str) -> None:
        with pytest.raises(SoundError, match=why):
            read_header(data)


class TestFlac:
    def test_the_header(self) -> None:
        sound = read_header(flac(np.stack([TONE, TONE], 1), 44_100))
        assert (sound.rate, sound.channels, sound.frames) == (44_100, 2, len(TONE))

    def test_metadata_is_dropped(self) -> None:
        plain = flac(TONE)
        sound = read_header(plain)
        assert sound.data[:42] == b"fLaC\x80" + plain[5:42]
        padding = b"\x81" + (500).to_bytes(3) + bytes(500)  # the last block
        assert read_header(b"fLaC\0" + plain[5:42] + padding + sound.data[42:]).data == sound.data

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda data: data[:30], "ends before its samples"),
            (lambda data: b"fLaC\x84" + data[5:], "must begin with its format"),
            (lambda data: flac_info(data, rate=0), "0 samples per second"),
            (lambda data: flac_info(data, frames=0), "as if written to a pipe"),
            (
                lambda data: b"fLaC\0" + data[5:42] + b"\1\0\0\0" * MAX_PARTS,
                "more than 1000 blocks of metadata",
            ),
        ],
    )
    def test_refused(self, change: object, why: str) -> None:
        with pytest.raises(SoundError, match=why):
            read_header(change(flac(TONE)))  # type: ignore[operator]


@pytest.mark.parametrize("data", [b"", b"RIFF", b"OggS" * 20, b"RIFF\0\0\0\0WEBP"])
def test_other_files(data: bytes) -> None:
    with pytest.raises(SoundError, match="neither a WAV nor a FLAC file"):
        read_header(data)
