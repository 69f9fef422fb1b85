"""Sounds as arrays: decoded, mixed and resampled, within bounds that the header must keep."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from models.choices import Resampling
from models.codec_specs import AudioCodecSpec
from models.inputs import audio
from models.inputs.audio import decode_sound, open_sound, resampled_size
from models.inputs.sound_files import SoundError
from models.tensors import Array, Axis
from tests.unit.models.sounds import flac, flac_info, tone, wav, wav_of

pytest.importorskip("soundfile", reason="soundfile is not installed")
soxr = pytest.importorskip("soxr", reason="soxr is not installed")

ANY = Axis("n", 0, 1_000_000)
TONE = tone(16_000)


def decoded(
    data: bytes, rate: int = 16_000, resampling: Resampling = "soxr-hq", axis: Axis = ANY
) -> Array:
    how = AudioCodecSpec(rate=rate, resampling=resampling)
    opened = open_sound(data, how, axis)
    samples = decode_sound(opened, how)
    assert samples.shape == (opened.samples,)
    assert samples.dtype == np.float32
    return samples


class TestSamples:
    @pytest.mark.parametrize("make", [wav, flac])
    def test_integers_become_minus_one_to_one(self, make: object) -> None:
        data = make(TONE)  # type: ignore[operator]
        np.testing.assert_allclose(decoded(data), TONE, atol=2 / 32_768)

    def test_floats_stay_as_they_are(self) -> None:
        numbers = np.array([0.25, -3.5, 1e-7], "<f4")
        np.testing.assert_array_equal(
            decoded(wav_of(numbers.tobytes(), bits=32, encoding=3)), numbers
        )

    @pytest.mark.parametrize(
        ("encoding", "bits", "data", "value"),
        [
            (1, 8, b"\xff", 127 / 128),
            (1, 24, b"\0\0\x80", -1.0),
            (1, 32, b"\0\0\0\x40", 0.5),
            (7, 8, b"\xff", 0.0),  # mu-law
            (6, 8, b"\xd5", 8 / 32_768),  # A-law
        ],
    )
    def test_each_encoding(self, encoding: int, bits: int, data: bytes, value: float) -> None:
        np.testing.assert_allclose(decoded(wav_of(data, bits=bits, encoding=encoding)), [value])

    @pytest.mark.parametrize("make", [wav, flac])
    def test_channels_are_averaged(self, make: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audio, "BLOCK", 700)  # several blocks, the last one shorter
        data = make(np.stack([TONE, np.zeros_like(TONE)], 1))  # type: ignore[operator]
        np.testing.assert_allclose(decoded(data), TONE / 2, atol=2 / 32_768)

    def test_an_empty_sound(self) -> None:
        assert decoded(wav(np.zeros(0))).shape == (0,)
        head = flac_info(flac(TONE), frames=0)[5:42]
        assert decoded(b"fLaC\x80" + head).shape == (0,)


class TestResampling:
    @pytest.mark.parametrize("resampling", ["soxr-hq", "soxr-vhq"])
    @pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
    def test_a_tone_stays_the_tone(self, rate: int, resampling: Resampling) -> None:
        got = decoded(wav(tone(rate), rate), resampling=resampling)
        inner = slice(200, -200)  # the ends ring
        np.testing.assert_allclose(got[inner], TONE[inner], atol=1e-3)

    def test_it_is_soxr_in_that_quality(self) -> None:
        data = wav(tone(44_100), 44_100)
        plain = decoded(data, 44_100)
        for resampling, quality in (("soxr-hq", "HQ"), ("soxr-vhq", "VHQ")):
            np.testing.assert_array_equal(
                decoded(data, resampling=resampling),  # type: ignore[arg-type]
                soxr.resample(plain, 44_100, 16_000, quality=quality),
            )

    def test_the_size_is_known_before(self) -> None:
        sizes = [0, 1, 2, 3, 100, 441, 442, 443, 9_999]
        for rate in (1_000, 7_999, 11_025, 16_001, 22_050, 44_100, 96_000, 768_000):
            for size in sizes:
                made = soxr.resample(np.zeros(size, np.float32), rate, 16_000) if size else ()
                assert len(made) == resampled_size(size, rate, 16_000), (rate, size)

    @pytest.mark.parametrize(
        ("rate", "wanted", "size"),
        [
            (48_000, 44_100, 8_560),
            (48_000, 22_050, 17_120),
        ],
    )
    def test_where_soxr_leaves_half_a_sample_out(self, rate: int, wanted: int, size: int) -> None:
        numbers = np.random.default_rng(0).uniform(-0.5, 0.5, size).astype("<f4")
        made = soxr.resample(numbers, rate, wanted)
        assert len(made) < resampled_size(size, rate, wanted)
        got = decoded(wav_of(numbers.tobytes(), rate, bits=32, encoding=3), wanted)
        np.testing.assert_array_equal(got, [*made, 0])

    def test_floats_that_are_nearly_zero_are_silence(self) -> None:
        """Subnormal ones would take soxr far longer."""
        for value in (9e-26, -1e-40):
            numbers = np.full(1000, value, "<f4")
            assert not decoded(wav_of(numbers.tobytes(), 48_000, bits=32, encoding=3)).any()

    def test_none_refuses_other_rates(self) -> None:
        assert len(decoded(wav(TONE), resampling="none")) == len(TONE)
        with pytest.raises(SoundError, match="48000 samples per second, the model takes 16000"):
            decoded(wav(TONE, 48_000), resampling="none")


class TestBounds:
    @pytest.mark.parametrize(
        ("data", "axis", "why"),
        [
            (wav(TONE[:399]), Axis("n", 400, 480_000), r"399 samples .*0.025 s.* takes 400 to 48"),
            (wav(TONE, 4_000), Axis("n", 0, 6_000), r"has 6400 samples at 16000 per second"),
            (wav(TONE), Axis(None, 512, 512), r"takes exactly 512 \(0.032 s\)"),
            (wav(TONE, 999), ANY, "999 samples per second; 1000 to 768000"),
            (wav(np.zeros((9, 9))), ANY, "9 channels, at most 8"),
        ],
    )
    def test_what_the_header_shows(self, data: bytes, axis: Axis, why: str) -> None:
        with pytest.raises(SoundError, match=why):
            open_sound(data, AudioCodecSpec(rate=16_000), axis)

    def test_a_bomb_is_refused_by_its_header(self) -> None:
        """Silence takes a thousandth: eight channels of a sound that is short enough."""
        data = flac(np.zeros((300_000, 8)), 48_000)
        assert len(data) < 30_000
        with pytest.raises(SoundError, match="24000000 samples in all channels"):
            open_sound(flac_info(data, frames=3_000_000), AudioCodecSpec(rate=16_000), ANY)

    def test_a_header_that_says_too_little_decodes_no_more(self) -> None:
        data = flac(np.zeros((300_000, 8)), 48_000)
        tracemalloc.start()
        try:
            assert decoded(flac_info(data, frames=3_000)).shape == (1_000,)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 8 << 20

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda data: data[: len(data) // 2], "damaged"),
            (lambda data: flac_info(data, frames=5_000), "ends before the 5000 samples of its"),
            (lambda data: data[:42] + b"\x55" * 2_000, "damaged"),
            (lambda data: data[:-300] + bytes(300), "damaged"),
        ],
    )
    def test_a_damaged_file(self, change: object, why: str) -> None:
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, len(TONE))
        with pytest.raises(SoundError, match=why):
            decoded(change(flac(noise)))  # type: ignore[operator]

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
    @pytest.mark.parametrize("rate", [16_000, 48_000])
    def test_floats_that_are_no_sound(self, value: float, rate: int) -> None:
        numbers = np.full((200, 2), value, "<f8")
        with pytest.raises(SoundError, match="NaN, infinite or too large"):
            decoded(wav_of(numbers.tobytes(), rate, 2, 64, 3))

    def test_the_cost_grows_with_the_work(self) -> None:
        how = AudioCodecSpec(rate=16_000)
        costs = [
            open_sound(data, how, ANY).cost
            for data in (wav(TONE), wav(np.stack([TONE] * 2, 1)), wav(tone(48_000), 48_000))
        ]
        assert costs == sorted(set(costs))
