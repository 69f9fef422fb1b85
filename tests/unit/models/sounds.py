"""Sounds as the bytes of files, for tests. FLAC needs the package soundfile."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from models.tensors import Array


def tone(rate: int, seconds: float = 0.1, hertz: float = 440.0) -> Array:
    """A sine of half the largest amplitude."""
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def wav(samples: Array, rate: int = 16_000, *, chunks: bytes = b"", tail: bytes = b"") -> bytes:
    """A WAV file of 16 bits of samples [n] or [n, channels] from -1 to 1."""
    numbers = np.round(samples * 32_767).astype("<i2")
    channels = 1 if numbers.ndim == 1 else numbers.shape[1]
    return wav_of(numbers.tobytes(), rate, channels, 16, chunks=chunks, tail=tail)


def wav_of(
    data: bytes,
    rate: int = 16_000,
    channels: int = 1,
    bits: int = 16,
    encoding: int = 1,
    *,
    size: int | None = None,
    chunks: bytes = b"",
    tail: bytes = b"",
) -> bytes:
    """A WAV file with any header; `chunks` are before the samples, `tail` behind them."""
    frame = channels * bits // 8
    head = struct.pack("<HHIIHH", encoding, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + riff_chunk(b"fmt ", head) + chunks
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data + tail
    return b"RIFF" + struct.pack("<I", len(body)) + body


def riff_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def flac(samples: Array, rate: int = 16_000, subtype: str = "PCM_16") -> bytes:
    """A FLAC file of samples [n] or [n, channels] from -1 to 1."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC", subtype=subtype)
    return file.getvalue()


def flac_info(data: bytes, **fields: int) -> bytes:
    """The same FLAC file with another rate, number of channels or of frames in its header."""
    packed = int.from_bytes(data[18:26])
    for name, value in fields.items():
        at, bits = {"rate": (44, 20), "channels": (41, 3), "frames": (0, 36)}[name]
        packed = packed & ~((1 << bits) - 1 << at) | value << at
    return data[:18] + packed.to_bytes(8) + data[26:]
