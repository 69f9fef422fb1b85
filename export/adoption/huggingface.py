"""Adopts a folder or a repository with a model in Hugging Face's format."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import get_args

from export.adoption.huggingface_pictures import picture_definition, takes_pictures
from export.errors import ExportError, UsageError
from models.choices import TextTask
from models.definitions.definition import Definition
from models.definitions.huggingface.definition import definition_of
from models.definitions.huggingface.encoder import EncoderOptions, architecture, class_of, config_of
from models.definitions.huggingface.folder import CONFIG, MISSING, FolderError, ModelFolder, cause
from models.definitions.huggingface.sentences import MODULES
from models.definitions.huggingface.towers import has_towers

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")  # not allowed in a model's name
# The files that a model needs; pickles only on request, code never.
FILES = ("*.json", "*.safetensors")
PICKLES = ("*.bin",)
OF_FILES = (
    *("input", "output", "labels", "pad", "codec", "scores", "top_k"),
    *("count", "ranked_by", "threshold", "classes"),
    *("preprocess", "mean", "std", "polarity", "fit", "resize_shorter"),
    *("interpolation", "fill", "alpha", "as", "palette", "categories", "unknown"),
)
OF_FOLDERS = ("tower", "pooling", "normalize", "max_tokens", "allow_pickle")
ADAPTER = "adapter_config.json"
TASKS = "|".join(get_args(TextTask))
# The end of the name of an architecture -> the task that it was made for.
TASK_OF_ARCHITECTURE = {
    "ForSequenceClassification": "classify (or rerank, if it scores pairs of texts)",
    "ForTokenClassification": "classify-tokens",
    "ForImageClassification": "classify (or embed)",
    "Model": "embed",
}
MODEL_FILES = (".pt", ".pt2", ".onnx", ".mar")
TWO_TOWERS = (
    "texts and pictures have a tower each, which become two models: adopt it with --task embed "
    "--tower text, and again with --tower vision"
)
NO_TOWERS = "--tower is for models with one tower for texts and one for pictures, such as CLIP"


def is_meant(args: argparse.Namespace) -> bool:
    """Whether the command names a folder or a repository of the hub."""
    file: Path = args.file
    return file.is_dir() or args.task is not None


def check_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not apply to this kind of model, a folder or a file."""
    folder = is_meant(args)
    kind, names = ("folder", OF_FILES) if folder else ("file", OF_FOLDERS)
    for name in names:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is not for a {kind}: {args.file}")


def adopt_folder(args: argparse.Namespace) -> tuple[str, Definition]:
    """Return the name and the definition of the model in a folder.

    Raises:
        UsageError: if the task is missing, or neither a folder nor a repository is named.
        ExportError: if the model cannot be used.
    """
    source = str(args.file)
    if args.task is None:
        try:
            raise UsageError(f"{source}: {_task_of(args.file)}")
        except FolderError as error:
            raise UsageError(f"{source}: {error}") from error
    check_options(args)
    if args.task != "embed" and (args.pooling or args.tower or args.normalize is not None):
        raise UsageError("--pooling, --tower and --[no-]normalize are for --task embed")
    options = EncoderOptions(
        task=args.task,
        pooling=args.pooling,
        normalize=args.normalize,
        max_tokens=args.max_tokens,
        allow_pickle=bool(args.allow_pickle),
        tower=args.tower,
    )
    path = args.file if args.file.exists() else _download(source, options)
    name = Path(source).resolve().name
    description = args.description or f"Adopted from {name}."
    try:
        definition = _definition(ModelFolder(path), options, description)
    except FolderError as error:
        raise ExportError(f"{source}: {error}") from error
    default_name = name if options.tower is None else f"{name}-{options.tower}"
    return NO_NAME.sub("-", default_name), definition


def _definition(folder: ModelFolder, options: EncoderOptions, description: str) -> Definition:
    if folder.json(ADAPTER) is not None:
        raise FolderError(_adapter(folder))
    fields = folder.fields(CONFIG)
    if not fields and folder.json(MODULES) is None:
        raise FolderError(_empty(folder))
    if folder.json(MODULES) is not None:
        return definition_of(folder, options, description)
    config = config_of(fields)
    towers = has_towers(config, class_of("AutoModel", config))
    if options.task == "embed" and towers != (options.tower is not None):
        raise FolderError(TWO_TOWERS if towers else NO_TOWERS)
    if towers and options.pooling is not None:
        raise FolderError("--pooling is for models with one tower; CLIP's towers have their own")
    if takes_pictures(config, options):
        return picture_definition(folder, config, options, description)
    return definition_of(folder, options, description)


def _task_of(path: Path) -> str:
    """Return what to do with a folder for which no task is given."""
    folder = ModelFolder(path)
    if folder.json(ADAPTER) is not None:
        return _adapter(folder)
    fields = folder.fields(CONFIG)
    if not fields and folder.json(MODULES) is None:
        return _empty(folder)
    try:
        config = config_of(fields)
    except FolderError:  # without transformers, or a sentence-transformers folder
        return f"a folder: --task {TASKS} says what its model is for"
    class_name = architecture(config)
    description = f"a folder{class_name and f' with {class_name}'}"
    if has_towers(config, class_of("AutoModel", config)):
        return f"{description}: {TWO_TOWERS}"
    task = next(
        (task for end, task in TASK_OF_ARCHITECTURE.items() if class_name.endswith(end)), None
    )
    if task is not None:
        return f"{description}: add --task {task}"
    return f"{description}: --task {TASKS} says what its model is for"


def _adapter(folder: ModelFolder) -> str:
    base = folder.fields(ADAPTER).get("base_model_name_or_path")
    return (
        f"a LoRA adapter ({ADAPTER}), which only changes another model, {base or 'its base'}: "
        "merge both in Python with PeftModel.from_pretrained(base, FOLDER).merge_and_unload()"
        ".save_pretrained(MERGED), save the tokenizer there too, and adopt MERGED"
    )


def _empty(folder: ModelFolder) -> str:
    there = sorted(file.name for file in folder.path.iterdir())
    summary = f"no {CONFIG}, but {', '.join(there[:5])}" if there else "an empty folder"
    files = [each for each in there if Path(each).suffix in MODEL_FILES]
    advice = f"; to adopt a model file, name it: {folder.path / files[0]}" if files else ""
    return f"{summary}: a folder must have what save_pretrained of transformers writes{advice}"


def _download(repository: str, options: EncoderOptions) -> Path:
    """Return the folder in Hugging Face's cache with the files of a repository."""
    if REPOSITORY.fullmatch(repository) is None:
        raise UsageError(f"{repository} does not exist, and is not OWNER/NAME of a hub repository")
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ExportError(MISSING) from error
    patterns = [*FILES, *(PICKLES if options.allow_pickle else ())]
    try:
        # The user names the repository; its files are read like those of any folder, and never run.
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=patterns)  # nosec B615
        return Path(folder)
    except Exception as error:  # from the hub, the network or the disk
        raise ExportError(
            f"{repository} is not a folder and cannot be downloaded: {cause(error)}; copy the "
            "model's folder to this machine and name it instead"
        ) from error
