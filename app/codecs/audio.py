"""Items as sounds: base64 in JSON, WAV or FLAC bytes; samples are accepted too."""

from __future__ import annotations

from app.codecs.base import FLAC, WAV, Budget, Files
from app.codecs.files import FileCodec
from app.errors import ArtifactInvalid, InvalidInput
from app.types import Item
from models.codec_specs import AudioCodecSpec
from models.inputs.audio import check_installed, decode_sound, item_of, item_samples, open_sound
from models.inputs.sound_files import SoundError
from models.manifest import Manifest
from models.system.extras import NotInstalled

SOUNDS = Files((WAV, FLAC), "a WAV or FLAC file")


class AudioCodec(FileCodec):
    """See `app.codecs.base.Codec`. A payload that is not a sound is read as a tensor.

    Args:
        manifest: its codec must be of kind `audio`.

    Raises:
        ArtifactInvalid: if a package is missing that sounds are decoded with.
        TypeError: if the manifest has another codec, which is a bug.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not isinstance(manifest.codec, AudioCodecSpec):
            raise TypeError(f"bug: an audio codec for {manifest.codec.kind!r}")
        self._how = manifest.codec
        try:
            check_installed(self._how)
        except NotInstalled as error:
            raise ArtifactInvalid(str(error)) from error
        super().__init__(manifest, SOUNDS, manifest.inputs[0])
        self._axis = self._input.axes[-1]

    def of_file(self, data: bytes, budget: Budget | None) -> Item:
        try:
            opened = open_sound(data, self._how, self._axis)
            if budget is not None:
                whole = opened.sound.frames * opened.sound.channels
                budget.sound(max(whole, item_samples(opened, self._inputs)), opened.cost)
            samples = decode_sound(opened, self._how)
        except SoundError as error:
            raise InvalidInput(f"{self._input.name!r}: {error}") from error
        return self.item(item_of(samples, self._inputs))
