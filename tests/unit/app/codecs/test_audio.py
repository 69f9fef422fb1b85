"""Sounds in base64 or as bytes, and samples as numbers."""

from __future__ import annotations

import base64
import sys

import numpy as np
import pytest

from app.api.multipart import FORM
from app.api.payloads import read_items
from app.codecs.audio import AudioCodec
from app.codecs.base import NPY, OCTET_STREAM, Budget, TooLongForLoop
from app.codecs.choose import codec_for
from app.errors import ArtifactInvalid, InvalidInput, PayloadTooLarge
from models.codec_specs import AudioCodecSpec, check_sound
from models.manifest import Manifest
from models.tensors import Dimension, Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.sounds import flac, tone, wav

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("soxr", reason="soxr is not installed")

N = Dimension(name="n", least=400, most=480_000)
PADDED = N.model_copy(update={"mask": "mask"})
HOW = AudioCodecSpec(rate=16_000)
SOUND = TensorSpec(name="audio", dtype="float32", shape=(-1, -1), dimensions=(N,))
CODEC = codec_for(make_manifest([SOUND], codec=HOW))
TONE = tone(16_000)
WAV = wav(TONE)
FLAC = flac(TONE)
ATOL = 2 / 32_768  # 16 bits, rounded by two writers


@pytest.mark.parametrize("data", [WAV, FLAC], ids=["wav", "flac"])
class TestAccepted:
    def test_base64(self, data: bytes) -> None:
        text = base64.b64encode(data).decode()
        for value in (text, f"data:audio/wav;base64,{text}"):
            np.testing.assert_allclose(CODEC.decode(value).arrays["audio"], TONE, atol=ATOL)

    @pytest.mark.parametrize("media_type", ["audio/wav", "audio/flac", OCTET_STREAM])
    @pytest.mark.parametrize("many", [False, True])
    def test_bytes_of_either_kind(self, data: bytes, media_type: str, many: bool) -> None:
        (item,) = CODEC.decode_raw(media_type, data, max_items=9 if many else None)
        np.testing.assert_allclose(item.arrays["audio"], TONE, atol=ATOL)

    @pytest.mark.parametrize("content_type", ["", "audio/x-wav", "audio/vnd.wave", "audio/x-flac"])
    def test_without_a_type_or_with_another_spelling(self, data: bytes, content_type: str) -> None:
        (item,) = read_items(CODEC, content_type, data, many=False, max_items=9)
        np.testing.assert_allclose(item.arrays["audio"], TONE, atol=ATOL)

    def test_several_files_of_a_form(self, data: bytes) -> None:
        part = (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n' % data
        )
        body = part * 3 + b"--x--\r\n"
        assert len(read_items(CODEC, f"{FORM}; boundary=x", body, many=True, max_items=9)) == 3


def test_samples_are_numbers_at_the_rate() -> None:
    numbers = np.linspace(-1, 1, 400, dtype=np.float32)
    np.testing.assert_array_equal(CODEC.decode(numbers.tolist()).arrays["audio"], numbers)
    assert CODEC.media_types[:4] == ("audio/wav", "audio/flac", OCTET_STREAM, NPY)


def test_the_axis_of_channels_and_a_fixed_size() -> None:
    sound = spec("audio", shape=(-1, 1, 1600))
    codec = codec_for(make_manifest([sound], codec=HOW))
    (item,) = codec.decode_raw("audio/flac", FLAC, max_items=None)
    assert item.arrays["audio"].shape == (1, 1600)
    raw = np.zeros((1, 1600), "<f4").tobytes()
    assert codec.decode_raw(OCTET_STREAM, raw, max_items=None)[0].arrays["audio"].any() == 0
    with pytest.raises(InvalidInput, match="it is not a WAV or FLAC file either"):
        codec.decode_raw(OCTET_STREAM, raw[1:], max_items=None)


def with_mask(dtype: Dtype) -> Manifest:
    inputs = [
        SOUND.model_copy(update={"dimensions": (PADDED,)}),
        TensorSpec(name="mask", dtype=dtype, shape=(-1, -1), dimensions=(PADDED,)),
    ]
    output = TensorSpec(name="value", dtype="float32", shape=(-1, 1))
    return make_manifest(inputs, [output], codec=HOW)


def test_a_mask_of_padding_is_filled() -> None:
    codec = codec_for(with_mask("int64"))
    item = codec.decode(base64.b64encode(WAV).decode())
    assert item.length == len(TONE)
    np.testing.assert_array_equal(item.arrays["mask"], np.ones(len(TONE), np.int64))
    numbers = {"audio": [0.5] * 400, "mask": [1] * 400}
    assert codec.decode(numbers).length == 400


class TestRejected:
    def test_bytes_that_are_no_sound(self) -> None:
        with pytest.raises(InvalidInput, match="'audio': neither a WAV nor a FLAC file"):
            CODEC.decode_raw(OCTET_STREAM, b"OggS" * 9, max_items=None)
        with pytest.raises(InvalidInput, match="'audio': a string must be a WAV or FLAC file in b"):
            CODEC.decode("?")

    def test_a_sound_that_is_too_short(self) -> None:
        with pytest.raises(InvalidInput, match=r"'audio': the sound has 300 samples .* takes 400"):
            CODEC.decode_raw("audio/wav", wav(TONE[:300]), max_items=None)

    @pytest.mark.parametrize("dtype", ["int64", "bool"])
    def test_the_budget_counts_what_a_small_file_becomes(self, dtype: Dtype) -> None:
        """30 s of silence at 1 kHz take 200 bytes, and the item up to 5.8 MB with its mask."""
        budget, codec = Budget(), AudioCodec(with_mask(dtype))
        each = 480_000 * (4 + np.dtype(dtype).itemsize) // 4
        data = flac(np.zeros(30_000), 1_000)
        for _ in range(16_000_000 // each):
            codec.of_file(data, budget)
        with pytest.raises(PayloadTooLarge, match="resampled ones and masks count; split it"):
            codec.of_file(data, budget)


def test_slow_sounds_are_left_to_a_thread() -> None:
    budget = Budget(on_loop=True)
    CODEC.decode_raw("audio/wav", WAV, max_items=None, budget=budget)
    for data in (wav(tone(16_000, 2)), flac(np.zeros(300_000), 16_000)):
        with pytest.raises(TooLongForLoop):
            CODEC.decode_raw("audio/wav", data, max_items=None, budget=Budget(on_loop=True))


@pytest.mark.parametrize("package", ["soundfile", "soxr"])
def test_a_missing_package_names_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArtifactInvalid, match=rf"needs {package}, .*torchlane\[audio\]'"):
        AudioCodec(make_manifest([SOUND], codec=HOW))


@pytest.mark.parametrize(
    "inputs",
    [
        [spec("x", "int16", (-1, -1))],
        [spec("x", shape=(-1, 2, -1))],
        [spec("x", shape=(-1,))],
        [SOUND, spec("state", shape=(-1, 4))],
    ],
)
def test_inputs_that_are_no_sound(inputs: list[TensorSpec]) -> None:
    with pytest.raises(ValueError, match=r"float32 of shape \[-1, n\] or \[-1, 1, n\]"):
        check_sound(inputs)


def test_the_schema_has_the_file() -> None:
    forms = CODEC.item_schema()["anyOf"]
    assert forms[0]["contentEncoding"] == "base64"
    assert "a WAV or FLAC file in base64" in forms[0]["description"]
    assert forms[1]["minItems"] == 400


def test_a_manifest_of_another_kind_is_a_bug() -> None:
    with pytest.raises(TypeError, match="bug"):
        AudioCodec(make_manifest())
