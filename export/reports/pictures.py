"""What the report says of a model's pictures, and the example as the model sees it."""

from __future__ import annotations

import base64
import binascii

from export.probing.samples import picture_of, png
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.pictures import PictureError
from models.inputs.preprocess import preprocess
from models.manifest import Manifest

MAX_SHOWN = 512  # pixels across and down; larger pictures are shown at a smaller scale


def steps_of(how: PicturePreprocess) -> str:
    """Return the preprocessing in words, in its order."""
    size = f"{'up to ' if how.fit == 'none' else ''}{how.width} x {how.height}"
    by, shorter = f"({how.interpolation})", how.resize_shorter
    shapes = {
        "none": "not scaled",
        "pad": f"scaled to fit inside {by}, the rest filled with {_fill(how)}",
        "crop": f"shorter side scaled to {shorter} {by}, middle cut out",
        "stretch": f"stretched {by}"
        if shorter is None
        else f"stretched to {shorter} x {shorter} {by}, middle cut out",
    }
    polarities = {
        "light-on-dark": "",
        "dark-on-light": "; inverted",
        "auto": "; inverted if the border is light",
    }
    alphas = {"white": "put on white", "drop": "transparency dropped"}
    figures = (", ".join(f"{value:g}" for value in each) for each in (how.mean, how.std))
    values = "levels of 0 to 255"
    if how.values == "normalized":
        values = f"(value / 255 - mean) / std with mean {next(figures)} and std {next(figures)}"
    return (
        f"{'grey' if how.channels == 1 else 'RGB'}, {size}; {alphas[how.alpha]}"
        f"{polarities[how.polarity]}; {shapes[how.fit]}; {values}"
    )


def _fill(how: PicturePreprocess) -> str:
    words = {"border": "the median of the outermost pixels", "mean": "the mean"}
    return f"level {how.fill}" if isinstance(how.fill, int) else words[how.fill]


def example_seen(manifest: Manifest) -> str | None:
    """Return the example as the model sees it, a PNG in base64; None: it is not a picture."""
    if not isinstance(manifest.codec, ImageCodecSpec):
        return None
    example, how = manifest.example, manifest.codec.preprocess
    if isinstance(example, dict):
        example = example.get(manifest.codec.input_of(manifest.inputs).name)
    if not isinstance(example, str):
        return None
    try:
        array = preprocess(base64.b64decode(example, validate=True), how)
    except (PictureError, binascii.Error):
        return None
    return png(picture_of(array, how), MAX_SHOWN)
