"""Converts a sound to an array, for export and serving: one channel, at the model's rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.codec_specs import AudioCodecSpec
from models.inputs.sound_files import Sound, SoundError, read_header
from models.system.extras import import_package
from models.system.memory_files import named_file
from models.tensors import Array, Axis, TensorSpec

# Checked in the header, before any sample is decoded: 9,000 samples may take a byte in FLAC.
MAX_SAMPLES = 16_000_000  # of all channels
MAX_CHANNELS = 8
SAMPLE_BYTES = 4  # of float32
MIN_RATE, MAX_RATE = 1_000, 768_000  # of a file
BLOCK = 1 << 16  # frames decoded at once, before their channels are mixed
# Costs as in `models.inputs.preprocess.OpenedPicture`: 128 KiB are about a millisecond or less.
FILE_COST = 24 << 10
SAMPLE_COST = 4  # to decode one of FLAC and mix it: 25 ns
RESAMPLER_COST = 24 << 10  # to make one
RESAMPLE_COST = 2  # of one in and one out, about 6 ns, or 10 by soxr-vhq
SILENT = 1e-25  # of floats: those below make soxr compute with subnormals, 40 times as long
QUALITIES = {"soxr-hq": "HQ", "soxr-vhq": "VHQ"}  # soxr's names


class OpenedSound(NamedTuple):
    """A sound that fits a model, as far as its header says.

    Attributes:
        sound: its header was read.
        samples: how many the model's input will have.
        cost: of decoding and resampling it, in the unit of `preprocess.OpenedPicture`.
    """

    sound: Sound
    samples: int
    cost: int


def check_installed(how: AudioCodecSpec) -> None:
    """Import what a model's sounds are decoded with.

    Raises:
        NotInstalled: with the extra that installs it.
    """
    import_package("soundfile", "soundfile, which reads audio files", "audio")
    if how.resampling != "none":
        import_package("soxr", "soxr, which resamples audio", "audio")


def open_sound(data: bytes, how: AudioCodecSpec, axis: Axis) -> OpenedSound:
    """Read only the header of a WAV or FLAC file.

    `axis` is that of the model's input that has the samples.

    Raises:
        SoundError: if the bytes are neither WAV nor FLAC, or the sound is too long, too short or of
            another rate for the model, or too long to decode.
    """
    sound = read_header(data)
    if not MIN_RATE <= sound.rate <= MAX_RATE:
        raise SoundError(
            f"the sound has {sound.rate} samples per second; {MIN_RATE} to {MAX_RATE} are read"
        )
    if sound.rate != how.rate and how.resampling == "none":
        raise SoundError(
            f"the sound has {sound.rate} samples per second, the model takes {how.rate}; resample "
            "the file"
        )
    if sound.channels > MAX_CHANNELS:
        raise SoundError(
            f"the sound has {sound.channels} channels, at most {MAX_CHANNELS} are read; mix it down"
        )
    samples = resampled_size(sound.frames, sound.rate, how.rate)
    if not axis.least <= samples <= axis.most:
        raise SoundError(
            f"the sound has {samples} samples at {how.rate} per second ({samples / how.rate:.3f} "
            f"s), the model takes {_sizes(axis, how.rate)}"
        )
    whole = sound.frames * sound.channels
    if whole > MAX_SAMPLES:
        raise SoundError(
            f"the sound has {whole} samples in all channels, at most {MAX_SAMPLES} are decoded; "
            "split it, or send one channel at the model's rate"
        )
    cost = FILE_COST + SAMPLE_COST * whole
    if sound.rate != how.rate:
        cost += RESAMPLER_COST + RESAMPLE_COST * (sound.frames + samples)
    return OpenedSound(sound, samples, cost)


def item_samples(opened_sound: OpenedSound, inputs: Sequence[TensorSpec]) -> int:
    """Return the size of a sound's item, with its masks, in samples of four bytes."""
    each = sum(np.dtype(spec.dtype).itemsize for spec in inputs)
    return -(-opened_sound.samples * each // SAMPLE_BYTES)


def item_of(samples: npt.NDArray[np.float32], inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return the arrays of a decoded sound, whose masks are 1 in all places."""
    first, *masks = inputs
    arrays: dict[str, Array] = {first.name: samples.reshape(*first.item_shape[:-1], -1)}
    return arrays | {spec.name: np.ones(samples.shape, spec.dtype) for spec in masks}


def resampled_size(frames: int, rate: int, new_rate: int) -> int:
    """Return how many samples a resampled sound has: rounded to the nearest, half a one up."""
    return (2 * frames * new_rate + rate) // (2 * rate)


def decode_sound(opened_sound: OpenedSound, how: AudioCodecSpec) -> npt.NDArray[np.float32]:
    """Decode a sound, mix its channels to their mean, and resample it.

    Returns:
        float32 array [samples]; integers of the file become -1 to 1, floats are as they are.

    Raises:
        SoundError: if the file is damaged, cut off, or has NaN or infinite samples.
        NotInstalled: if a package is missing.
    """
    sound = opened_sound.sound
    mono = _decode(sound)
    if sound.rate != how.rate and mono.size:
        if sound.floats:
            mono[np.abs(mono) < SILENT] = 0
        soxr = import_package("soxr", "soxr, which resamples audio", "audio")
        mono = soxr.resample(mono, sound.rate, how.rate, quality=QUALITIES[how.resampling])
        # If half a sample would be left, soxr returns it or not: 8560 of 48 to 44.1 kHz give 7864.
        if mono.size != opened_sound.samples:
            mono = np.pad(
                mono[: opened_sound.samples], (0, max(0, opened_sound.samples - mono.size))
            )
    if sound.floats and not np.isfinite(mono).all():
        raise SoundError("the sound has samples that are NaN, infinite or too large")
    return mono


def _decode(sound: Sound) -> npt.NDArray[np.float32]:
    soundfile = import_package("soundfile", "soundfile, which reads audio files", "audio")
    mono = np.empty(sound.frames, np.float32)
    if not sound.frames:
        return mono
    at = 0
    try:
        # By its name: libsndfile would call a Python object for each few kilobytes, with the GIL.
        with named_file(sound.data) as path, soundfile.SoundFile(path) as file:
            while at < len(mono):
                block = file.read(min(BLOCK, len(mono) - at), dtype="float32", always_2d=True)
                if not len(block):
                    break
                _mix(block, mono[at : at + len(block)])
                at += len(block)
    except soundfile.SoundFileError as error:
        raise SoundError(
            f"the sound is damaged, or ends before the {len(mono)} samples of its header: {error}"
        ) from error
    if at < len(mono):
        raise SoundError(f"the sound has only {at} of the {len(mono)} samples of its header")
    return mono


def _mix(block: npt.NDArray[np.float32], mono: npt.NDArray[np.float32]) -> None:
    """Write the mean of the channels [frames, channels] to `mono` [frames]."""
    with np.errstate(over="ignore", invalid="ignore"):  # floats are checked at the end
        if block.shape[1] == 1:
            mono[:] = block[:, 0]
        else:
            np.mean(block, axis=1, out=mono)


def _sizes(axis: Axis, rate: int) -> str:
    if axis.least == axis.most:
        return f"exactly {axis.least} ({axis.least / rate:.3f} s)"
    return f"{axis.least} to {axis.most} ({axis.least / rate:.3f} to {axis.most / rate:.3f} s)"
