"""WAV and FLAC files, as they are and in base64, for models of sounds of several rates."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import get_args

import numpy as np

from app.codecs.choose import codec_for
from models.choices import Resampling
from models.codec_specs import AudioCodecSpec
from models.tensors import Dimension, TensorSpec
from tests.fuzz.oracle import outcome
from tests.fuzz.target import Finding, Target
from tests.unit.models.manifests import make_manifest
from tests.unit.models.sounds import flac, flac_info, riff_chunk, tone, wav, wav_of

RATES = (16_000, 8_000)
N = Dimension(name="n", least=10, most=20_000)
SOUND = TensorSpec(name="audio", dtype="float32", shape=(-1, -1), dimensions=(N,))
CODECS = tuple(
    codec_for(make_manifest([SOUND], codec=AudioCodecSpec(rate=rate, resampling=resampling)))
    for rate in RATES
    for resampling in get_args(Resampling)
)
MEDIA_TYPES = ("audio/wav", "audio/flac", "application/octet-stream")


def case(data: bytes) -> None:
    """The first byte says for which model and how it comes; the rest is the file."""
    if not data:
        return
    how, file = data[0], data[1:]
    codec = CODECS[how % len(CODECS)]
    got = outcome(codec, MEDIA_TYPES[how % len(MEDIA_TYPES)], file, many=how > 127)
    body = b'{"input": "' + base64.b64encode(file) + b'"}'
    again = outcome(codec, "application/json", body, many=False)
    if got != again:
        raise Finding(f"as a file: {got}\nin base64: {again}")


def seeds() -> Iterator[bytes]:
    """Each encoding, rates to resample from, several channels, and headers that lie."""
    for file in _files():
        for how in (0, 3, 5, 130):
            yield bytes((how,)) + file


def _files() -> Iterator[bytes]:
    short = tone(16_000, 0.01)
    two = np.stack([short, -short], 1)
    for rate in (16_000, 8_000, 11_025, 48_000):
        yield wav(short, rate)
        yield flac(short, rate)
    for subtype in ("PCM_S8", "PCM_16", "PCM_24"):
        yield flac(two, subtype=subtype)
    yield wav(two, chunks=riff_chunk(b"LIST", b"INFO"), tail=riff_chunk(b"id3 ", b"x"))
    for encoding, bits in ((1, 8), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8)):
        yield wav_of(bytes(20 * bits), 16_000, 2, bits, encoding)
    yield wav_of(np.full(99, np.nan, "<f4").tobytes(), bits=32, encoding=3)
    for size in (0, 10_000, 0xFFFFFFFF):
        yield wav_of(bytes(400), size=size)
    for fields in ({"frames": 5}, {"frames": 19_999}, {"channels": 7}, {"rate": 655_350}):
        yield flac_info(flac(two), **fields)


WORDS = (
    *(b"RIFF", b"WAVE", b"fmt ", b"data", b"LIST", b"fLaC", b"\xff\xf8", b"\xff\xf9", b"\xfe\xff"),
    *(b"\x80\0\0\x22", b"\x84\0\0\0", b"\0\0\0\x22", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f"),
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
