"""The options of `torchlane adopt` for what clients send and what they receive."""

from __future__ import annotations

import argparse
from typing import get_args

from models.choices import Alpha, Fit, Interpolation, Polarity, Resampling, Scores
from models.system.local_paths import local_path


def add_codec(parser: argparse.ArgumentParser) -> None:
    """Add the options that `export.reading.codecs` reads."""
    add = parser.add_argument
    add("--codec", choices=("tensor", "image", "audio"), help="what clients send (default: tensor)")
    add(
        "--scores",
        choices=get_args(Scores),
        help="how the first output becomes scores (default: none)",
    )
    add(
        "--top-k",
        type=int,
        metavar="K",
        help="answer only the K highest scores, unless the caller asks for others (default: all)",
    )
    rows = parser.add_argument_group("for outputs with as many rows as the model found")
    add = rows.add_argument
    add(
        "--count",
        action="append",
        metavar="COUNT=NAME,NAME",
        help="the output COUNT has the number of valid rows of these outputs; answers leave out "
        "the others",
    )
    add("--ranked-by", metavar="NAME", help="the output with the score of each row: best first")
    add("--threshold", type=float, metavar="X", help="leave out rows with a lower score")
    add(
        "--classes",
        metavar="NAME",
        help="the output with the class of each row, an index into --labels",
    )
    picture = parser.add_argument_group("for --codec image")
    add = picture.add_argument
    add(
        "--preprocess",
        type=local_path,
        metavar="FILE",
        help="how pictures become the input, as torchvision's weights.transforms() prints it, in "
        "Hugging Face's preprocessor_config.json, or as timm's resolve_data_config; the options "
        "below replace what it says",
    )
    add(
        "--mean",
        metavar="X,X,X",
        help="subtracted from values in 0..1 (default: 0); imagenet: the figures of ImageNet, "
        "here and for --std",
    )
    add("--std", metavar="X,X,X", help="divisor of the result (default: 1); or imagenet")
    add("--polarity", choices=get_args(Polarity), help="(default: light-on-dark, unchanged)")
    add(
        "--fit",
        choices=get_args(Fit),
        help="scale the whole picture and fill the rest, cut out the middle, change width and "
        "height separately, or leave pictures as they are (default: pad; none if H and W are free)",
    )
    add(
        "--resize-shorter",
        type=int,
        metavar="PIXELS",
        help="for --fit crop: the picture's shorter side before the cut (default: 256 for 224); "
        "for --fit stretch: both sides before a cut (default: no cut)",
    )
    add(
        "--interpolation",
        choices=get_args(Interpolation),
        help="how pictures are scaled (default: bilinear)",
    )
    add(
        "--fill",
        metavar="LEVEL|mean|border",
        help="for --fit pad: the rest gets this level of 0..255, the mean, or the median of the "
        "picture's outermost pixels (default: border)",
    )
    add(
        "--alpha",
        choices=get_args(Alpha),
        help="put transparent pictures on white, or drop their transparency (default: white)",
    )
    add(
        "--boxes",
        action="append",
        metavar="NAME=FORM",
        help="this output has boxes, which answers to pictures have in the picture's pixels. FORM: "
        "xyxy (left, top, right, bottom), xywh (left, top, width, height), cxcywh (centre, width, "
        "height), or xy for points. FORM,relative: 0 to 1 across the model's input, not its "
        "pixels. FORM,columns: boxes are columns, not rows",
    )
    add(
        "--mask",
        action="append",
        metavar="NAME",
        help="the last two axes of this output are the height and width of a mask over the model's "
        "input; answers to pictures have it in the picture's pixels",
    )
    _add_sounds(parser)


def add_categories(parser: argparse.ArgumentParser) -> None:
    """Add the options that `export.reading.categories` reads."""
    group = parser.add_argument_group("for inputs that are categories")
    group.add_argument(
        "--categories",
        action="append",
        metavar="NAME=FILE",
        help="clients send names for this input of integers, and the model gets their indices: the "
        "file has one name per line, in UTF-8; the first has the index 0",
    )
    group.add_argument(
        "--unknown",
        action="append",
        metavar="NAME=INDEX",
        help="the index of all other names, and of missing ones (default: they are rejected)",
    )


def add_pictured(parser: argparse.ArgumentParser) -> None:
    """Add the options that `export.reading.pictured` reads."""
    add = parser.add_argument_group("for outputs that are pictures").add_argument
    add(
        "--as",
        action="append",
        metavar="[NAME=]FORM",
        help="the output (default: the first) is a picture, which clients can get as a PNG file: "
        "`image` (RGB or grey, [C,height,width] or [height,width,C]; `image in -1..1`: the numbers "
        "of black and white, 0..1 by default, 0..255 for uint8), or `mask` (the class of each "
        "pixel, or a score for each class)",
    )
    add(
        "--palette",
        type=local_path,
        metavar="FILE",
        help="for a mask: a line for each class with its colour and, if you like, its name, such "
        "as `#804080 road` (default: the colours of PASCAL VOC)",
    )


def _add_sounds(parser: argparse.ArgumentParser) -> None:
    sound = parser.add_argument_group("for --codec audio")
    add = sound.add_argument
    add(
        "--rate",
        type=int,
        metavar="HZ",
        help="samples per second of the input, required; files are mixed to one channel",
    )
    add(
        "--resampling",
        choices=get_args(Resampling),
        help="how files of another rate are converted: by soxr in high or very high quality; or "
        "they are refused (default: soxr-hq)",
    )
