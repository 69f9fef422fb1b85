"""The options of `torchlane adopt`."""

from __future__ import annotations

import argparse
from typing import get_args

from export.options.artifacts import add_artifact
from export.options.payloads import add_categories, add_codec, add_pictured
from models.choices import Pooling, TextTask, Tower
from models.system.command_lines import positive
from models.system.local_paths import local_path

DESCRIPTION = """\
Export a model that was created elsewhere. FILE is a torch.export program, TorchScript, an ONNX
model, a TorchServe archive that contains one of them, or a folder in Hugging Face's format. Its
Python code is never run and nothing is unpickled; the outputs are found by running the model on
samples.
"""
MAX_EXAMPLES = 512  # for the proofs, and for int8's ranges
MAX_ITEMS = 2048  # with those that measure accuracy
EXAMPLE_FORMATS = (
    "a folder of PNG, JPEG, WebP or GIF pictures, or of WAV or FLAC sounds, .npy, .npz, .parquet, "
    ".txt or .jsonl"
)


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane adopt`."""
    add = parser.add_argument
    add(
        "file",
        type=local_path,
        metavar="FILE",
        help="a torch.export program (.pt2), a TorchScript file (.pt), an ONNX model (.onnx), an "
        "archive (.mar), or a folder",
    )
    add(
        "--name",
        metavar="N",
        help="the model's name (default: from the .mar or the folder; otherwise required)",
    )
    add(
        "--input",
        action="append",
        metavar="SPEC",
        help="an input, such as 'float32[-1,3,224,224]' or 'ids=int64[-1,1<=seq<=512] in 0..29'; "
        "repeat it for each input, in the model's order. [NAME=]dtype[shape]: axis 0 is the batch, "
        "-1; any other -1 is a free size. A name (seq) is a free size too, the same wherever it "
        "occurs; 1<=seq<=512 bounds it (either end may be omitted). `in LEAST..MOST` is the range "
        "of integers (0.. and ..9 are open at one end, .. at both; 0..<n ends before the size n); "
        "`or nan` says that floats may be missing: NaN, null in JSON. "
        "Export finds what you omit by trial: which sizes are equal, the largest and smallest that "
        "work, and the range",
    )
    add(
        "--pad",
        action="append",
        metavar="NAME=MASK",
        help="let items that differ in the free size NAME share a batch: they are padded, and the "
        "input MASK is 1 where an item has data and 0 where it is padded. Export checks that this "
        "changes no answer",
    )
    add(
        "--output",
        action="append",
        metavar="NAME",
        help="a name for an output; repeat it for each output, in the model's order. For a dict or "
        "a NamedTuple: which of its outputs to serve, in which order. NAME=FILE: this output comes "
        "first and has the labels in FILE",
    )
    add(
        "--labels",
        type=local_path,
        metavar="FILE",
        help="labels of the first output, one per line, or in JSON: a list, or index -> label",
    )
    add("--description", metavar="TEXT", help="one sentence about the model")
    add_codec(parser)
    add_categories(parser)
    add_pictured(parser)
    _add_examples(parser)
    _add_huggingface(parser)
    add_artifact(parser)


def _add_examples(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for real inputs")
    group.add_argument(
        "--examples",
        type=local_path,
        metavar="PATH",
        help=f"real inputs of the model, at least two: {EXAMPLE_FORMATS}. All proofs use up to "
        f"{MAX_EXAMPLES} of them, drawn from all, in place of random numbers, and int8 learns its "
        "ranges from them; golden examples, which the artifact contains, are some of them. With "
        "labels (a folder for each, `labels` in .npz, a column or key `label`), up to "
        f"{MAX_ITEMS:,} are read, and accuracy is measured on at least half of them",
    )
    group.add_argument(
        "--example-labels",
        type=local_path,
        metavar="FILE",
        help="the labels of --examples: one per line, in the order of rows or of the pictures' "
        "names; a label of the model, or its index",
    )


def _add_huggingface(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "for a folder in Hugging Face's format, or a repository OWNER/NAME on the hub"
    )
    add = group.add_argument
    add("--task", choices=get_args(TextTask), help="what the model is for (required)")
    add(
        "--tower",
        choices=get_args(Tower),
        help="for embed with CLIP, SigLIP and the like: which of the two towers, each of which is "
        "a model of its own",
    )
    add(
        "--pooling",
        choices=get_args(Pooling),
        help="for embed: how tokens become one vector (default: from sentence-transformers' files, "
        "else mean)",
    )
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="for embed: scale vectors to the length 1, or keep their length (default: from "
        "sentence-transformers' files, else 1)",
    )
    add(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="most tokens of one item (default: from the files)",
    )
    add(
        "--allow-pickle",
        action="store_const",
        const=True,
        help="without safetensors, read pytorch_model.bin by torch.load(weights_only=True)",
    )
