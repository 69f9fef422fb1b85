"""Adopts a folder or a repository with a model in Hugging Face's format."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import get_args

from export import values
from export.errors import ExportError, UsageError
from models.codec_specs import TextTask
from models.definitions.definition import Definition
from models.definitions.heads import Pooling
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import Wanted
from models.definitions.huggingface.folder import MISSING, FolderError, ModelFolder, cause

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")  # not allowed in a model's name
# The files that a model needs; pickles only on request, code never.
FILES = ("*.json", "*.safetensors")
PICKLES = ("*.bin",)
OF_FILES = (
    *("input", "output", "labels", "pad", "codec", "scores", "top_k"),
    *("count", "ranked_by", "threshold", "classes"),
    *("preprocess", "mean", "std", "polarity", "fit", "resize_shorter"),
    *("interpolation", "fill", "alpha"),
)
OF_FOLDERS = ("pooling", "normalize", "max_tokens", "allow_pickle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of folders in Hugging Face's format."""
    group = parser.add_argument_group(
        "for a folder in Hugging Face's format, or a repository OWNER/NAME on the hub"
    )
    add = group.add_argument
    add("--task", choices=get_args(TextTask), help="what the model is for (required)")
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
        type=values.positive,
        metavar="N",
        help="most tokens of one item (default: from the files)",
    )
    add(
        "--allow-pickle",
        action="store_const",
        const=True,
        help="without safetensors, read pytorch_model.bin by torch.load(weights_only=True)",
    )


def is_meant(parsed: argparse.Namespace) -> bool:
    """Whether the command names a folder or a repository of the hub."""
    file: Path = parsed.file
    return file.is_dir() or parsed.task is not None


def check_options(parsed: argparse.Namespace) -> None:
    """Raise UsageError for options that do not apply to this kind of model, a folder or a file."""
    folder = is_meant(parsed)
    kind, names = ("folder", OF_FILES) if folder else ("file", OF_FOLDERS)
    for name in names:
        if getattr(parsed, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is not for a {kind}: {parsed.file}")


def adopt_folder(parsed: argparse.Namespace) -> tuple[str, Definition]:
    """Return the name and the definition of the model in a folder.

    Raises:
        UsageError: if the task is missing, or neither a folder nor a repository is named.
        ExportError: if the model cannot be used.
    """
    if parsed.task is None:
        raise UsageError(
            f"{parsed.file} is a folder: --task {'|'.join(get_args(TextTask))} says "
            "what its model is for"
        )
    check_options(parsed)
    if parsed.task != "embed" and (parsed.pooling or parsed.normalize is not None):
        raise UsageError("--pooling and --[no-]normalize are for --task embed")
    wanted = Wanted(
        task=parsed.task,
        pooling=parsed.pooling,
        normalize=parsed.normalize,
        max_tokens=parsed.max_tokens,
        allow_pickle=bool(parsed.allow_pickle),
    )
    told = str(parsed.file)
    path = parsed.file if parsed.file.exists() else _downloaded(told, wanted)
    try:
        folder = ModelFolder(path)
        name = Path(told).resolve().name
        description = parsed.description or f"Adopted from {name}."
        definition = definition_of(folder, wanted, description)
    except FolderError as error:
        raise ExportError(f"{told}: {error}") from error
    return NO_NAME.sub("-", name), definition


def _downloaded(repository: str, wanted: Wanted) -> Path:
    """Return the folder in Hugging Face's cache with the files of a repository."""
    if REPOSITORY.fullmatch(repository) is None:
        raise UsageError(f"{repository} does not exist, and is not OWNER/NAME of a hub repository")
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ExportError(MISSING) from error
    patterns = [*FILES, *(PICKLES if wanted.allow_pickle else ())]
    try:
        # The user names the repository; its files are read like those of any folder, and never run.
        found = huggingface_hub.snapshot_download(repository, allow_patterns=patterns)  # nosec B615
        return Path(found)
    except Exception as error:  # from the hub, the network or the disk
        raise ExportError(
            f"{repository} is not a folder and cannot be downloaded: {cause(error)}; copy the "
            "model's folder to this machine and name it instead"
        ) from error
