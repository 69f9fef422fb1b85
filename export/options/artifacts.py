"""The options of commands that create, time or show an artifact."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from models.choices import MAX_BATCH, Precision
from models.stores.urls import writable_place
from models.system.command_lines import names, points, positive, share
from models.system.local_paths import local_path

# In a plan's order of preference; `export.variants.registry` has a maker for each.
VARIANTS = (
    *("script", "trace", "onednn", "compiled", "compiled-cuda"),
    *("openvino", "onnx", "bf16", "fp16", "int8", "staged"),
)
INTEGER_SHARE = 1e-4  # of the indices, such as those of classes, whose scores may tie
BATCH_S = 4.0  # the most that eager takes for the largest batch: a caller would wait as long


def add_export(parser: argparse.ArgumentParser, models: Iterable[str]) -> None:
    """Add the arguments of `torchlane export`.

    Args:
        parser: gets them.
        models: the names that can be exported.
    """
    parser.add_argument("model", help=f"what to export: {', '.join(models)}".replace("%", "%%"))
    parser.add_argument(
        "--checkpoint",
        "--weights",
        type=local_path,
        metavar="FILE",
        help="load weights instead of training: a state_dict, a safetensors file, or a checkpoint "
        "of `torchlane train`, Lightning or another trainer",
    )
    parser.add_argument(
        "--checkpoint-key",
        metavar="NAME",
        help="which weights of the checkpoint, if several fit: state_dict_ema, for example",
    )
    parser.add_argument(
        "--if-empty",
        action="store_true",
        help="do nothing if the repository already has an artifact of any model",
    )
    add_artifact(parser)


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that creates an artifact of a model."""
    add_out(parser, "MODEL")
    _add_variants(parser)
    _add_tuning(parser)


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane tune`."""
    add_folder(parser)
    _add_tuning(parser, again=True)


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane show`."""
    add_folder(parser)
    parser.add_argument(
        "--trusted-keys",
        type=local_path,
        metavar="PATH",
        help="public keys, a PEM file or a folder of them: accept only what they signed",
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names an artifact."""
    parser.add_argument("folder", type=local_path, help="an artifact, such as artifacts/digits/1")


def _add_variants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants",
        type=names,
        metavar="A,B",
        help=f"which variants to build, of {', '.join(VARIANTS)} (default: all that the model and "
        "this machine allow; trace only if script fails)",
    )
    parser.add_argument(
        "--max-accuracy-drop",
        type=points,
        default=0.5,
        metavar="POINTS",
        help="leave out variants that lose more accuracy than this, in hundredths (default: 0.5)",
    )


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options that say where an artifact is written."""
    parser.add_argument(
        "--out",
        type=writable_place,
        default=Path("artifacts"),
        metavar="FOLDER|URL",
        help="the repository to write to, a folder or a store such as s3://bucket/models: it gets "
        f"{name}/VERSION (default: artifacts)",
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="the version number to write (default: one more than the highest)",
    )


def _add_tuning(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    parser.add_argument(
        "--plan-precision",
        choices=get_args(Precision),
        help="the precision that a server computes in by default, at all batch sizes "
        "(default: float32 if a variant has it)",
    )
    parser.add_argument(
        "--max-batch-size",
        type=positive,
        metavar="N",
        help=f"time batches of up to N (default: the largest of its plan, else {MAX_BATCH})"
        if again
        else "verify and time batches of up to N; a server forms no larger ones, so give it if the "
        f"model will run on a GPU (default: {MAX_BATCH}, or, on a machine without a GPU, as many "
        f"items as eager PyTorch computes in {BATCH_S:g} s)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="time with N threads on the CPU (default: as many as a server with one replica uses: "
        "all usable cores but one)",
    )
    if not again:
        parser.add_argument(
            "--thorough",
            action="store_true",
            help="compare batches of many sizes with eager PyTorch, however long that takes "
            "(default: of a slow model at least of 1, 2, two others and the largest)",
        )
        parser.add_argument(
            "--integer-share",
            type=share,
            default=INTEGER_SHARE,
            metavar="SHARE",
            help="how many of an item's integers in an output may differ, such as the classes of "
            "pixels whose two highest scores are equal but for rounding, from 0 to 1 "
            f"(default: {INTEGER_SHARE:g}; recorded in the manifest)",
        )
        parser.add_argument(
            "--profile",
            action="store_true",
            help="write a Chrome trace and a table of operators for eager and every form",
        )
