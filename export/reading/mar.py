"""Reads TorchServe's model archives, `.mar`, and never runs them.

Follows its archiver (torch-model-archiver 0.12) and the server's own handlers:
https://github.com/pytorch/serve, `ts/torch_handler` and `docs/default_handlers.md`.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import Literal

from export.errors import ExportError
from models.choices import Fit, Interpolation, Scores
from models.codec_specs import CropCorner, Fill
from models.system.archive import DAMAGE

MANIFEST = "MAR-INF/MANIFEST.json"
LABELS = "index_to_name.json"
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_LABELS_BYTES = 16 * 1024 * 1024
MAX_LISTED = 10  # files named in a warning; the others are counted

# TorchServe's default handlers, each with the replacement for what it does; None: nothing is lost.
# `base_handler` accepts and returns nested numbers, as this server does.
DEFAULT_HANDLERS: dict[str, str | None] = {
    "base_handler": None,
    "image_classifier": None,
    "text_classifier": "convert text to the model's numbers in the client",
    "object_detector": "pictures are not decoded: send tensors, and read boxes from the outputs",
    "image_segmenter": "send tensors, or use --codec image with --mean, --std and --fit",
    "dali_image_classifier": "use --codec image with --mean, --std and --fit, or send tensors",
    "vllm_handler": "text is not tokenized: send tensors",
    "trt_llm_handler": "text is not tokenized: send tensors",
}
# Handlers whose index_to_name.json labels detected objects or pixels, not the first output.
LABELS_ELSEWHERE = ("object_detector", "image_segmenter")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for omitted options; None: the option is required.

    Attributes:
        mean, std: None means 0 and 1 in every channel.
        resize_shorter, fill, crop_corner: apply only together with `fit`.
        picture: the file with these figures, and its pictures' height and width; None: no file.
    """

    codec: Literal["tensor", "image"] = "tensor"
    inputs: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    fit: Fit = "pad"
    resize_shorter: int | None = None
    interpolation: Interpolation = "bilinear"
    fill: Fill = "border"
    crop_corner: CropCorner = "half-even"
    picture: tuple[str, int, int] | None = None
    scores: Scores = "none"


PLAIN = Defaults()
# Red, green, blue: statistics of the pictures that most published models were trained on.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# `ts/torch_handler/image_classifier.py`: the shorter side is resized to 256 (bilinear), the middle
# 224 x 224 cut out, values scaled to 0 .. 1 and normalised with ImageNet's mean and std; the answer
# is a softmax. (TorchServe returns the five best; this server returns all scores.)
IMAGE_CLASSIFIER = Defaults(
    codec="image",
    inputs=("float32[-1,3,224,224]",),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    fit="crop",
    scores="softmax",
)


@dataclass(frozen=True, slots=True)
class Mar:
    """The content of an archive.

    Attributes:
        version: the model's version; empty if it has none.
        handler: the name of a default handler, or of a Python file.
        labels: of the first output, from index_to_name.json; None: there are none.
        other_files: the names of all other files.
    """

    model: str
    version: str
    handler: str
    serialized_file: str
    data: bytes
    labels: tuple[str, ...] | None
    other_files: tuple[str, ...]

    @property
    def defaults(self) -> Defaults:
        """The supported part of what the archive's handler does."""
        return IMAGE_CLASSIFIER if self.handler == "image_classifier" else PLAIN

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence on each part that is not adopted."""
        sentences = []
        if self.handler not in DEFAULT_HANDLERS:
            sentences.append(
                f"the archive's own handler {self.handler!r} is not run: describe what it does "
                "before and after the model with --codec, --mean, --std, --fit, --scores and "
                "--labels, or export it, too, with `torchlane export handler FILE.mar --model NAME`"
            )
        elif advice := DEFAULT_HANDLERS[self.handler]:
            sentences.append(f"the handler {self.handler!r} is not run: {advice}")
        if self.other_files:
            more = len(self.other_files) - MAX_LISTED
            names = ", ".join(self.other_files[:MAX_LISTED]) + (
                f" and {more} more" if more > 0 else ""
            )
            sentences.append(f"these files of the archive are not used: {names}")
        return tuple(sentences)


def read_mar(data: bytes, names: list[str], what: str) -> Mar:
    """Read an archive that was already checked, without its Python files.

    Args:
        data: the archive.
        names: of its entries, from `check_archive`.
        what: its name, for messages.

    Raises:
        ExportError: if it is damaged, or not written by torch-model-archiver.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            model = model_part(archive, what)
            if "modelFile" in model:
                raise ExportError(
                    f"{what} has an eager model: weights, and the Python class in "
                    f"{model['modelFile']!r}, which is never run. Save the model as "
                    "TorchScript, torch.jit.script(model.eval()).save('model.pt'), and adopt "
                    "that file, or archive it without --model-file; `torchlane export handler` "
                    "runs an archive as it is"
                )
            file = text_of(model, "serializedFile", what)
            if file not in names:
                raise ExportError(f"{what} has no file {file!r}, which its manifest names")
            handler = text_of(model, "handler", what)
            labels = None
            if LABELS in names and handler not in LABELS_ELSEWHERE:
                labels = labels_of(_json(archive, LABELS, MAX_LABELS_BYTES), LABELS)
            script = handler.partition(":")[0]  # file:function; the suffix is optional
            used_names = {MANIFEST, file, script, f"{script}.py"} | ({LABELS} if labels else set())
            return Mar(
                model=text_of(model, "modelName", what),
                version=str(model.get("modelVersion", "")),
                handler=handler,
                serialized_file=file,
                data=archive.read(file),
                labels=labels,
                other_files=tuple(n for n in names if n not in used_names and not n.endswith("/")),
            )
    except (*DAMAGE, zlib.error) as error:
        raise ExportError(f"{what} is damaged: {error}") from error


def labels_of(value: object, what: str) -> tuple[str, ...]:
    """Parse labels from JSON: a list, or an object index -> label; a label may be a list of names.

    The last of several names is for people, as in `{"0": ["n01440764", "tench"]}`.

    Args:
        value: from json.loads.
        what: the file's name, for messages.

    Raises:
        ExportError: if it is neither, an index is missing, or a label is not text.
    """
    if (
        isinstance(value, dict) and "object_type_names" in value
    ):  # an older form, which TorchServe still reads
        value = value["object_type_names"]
    if isinstance(value, dict):
        indices = [str(index) for index in range(len(value))]
        if missing := [index for index in indices if index not in value]:
            raise ExportError(
                f"{what} names {len(value)} labels, but none for the index {missing[0]}: the "
                f"indices must be 0 to {len(value) - 1}"
            )
        value = [value[index] for index in indices]
    if not isinstance(value, list) or not value:
        raise ExportError(f"{what} is neither a list of labels nor an object of index -> label")
    names = [each[-1] if isinstance(each, list) and each else each for each in value]
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise ExportError(f"{what}: the label of the index {index} is not text: {name!r}")
    return tuple(names)


def parse_json(data: str | bytes, what: str) -> object:
    """Parse a JSON file.

    Raises:
        ExportError: if it is not JSON.
    """
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise ExportError(f"{what} is not JSON: {error}") from error
    return value


def _json(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> object:
    size = archive.getinfo(name).file_size
    if size > limit_bytes:
        raise ExportError(f"{name} has {size:,} bytes; at most {limit_bytes:,} are read")
    return parse_json(archive.read(name), name)


def model_part(archive: zipfile.ZipFile, what: str) -> dict[str, object]:
    """The part of an archive's manifest that is about its model.

    Raises:
        ExportError: if there is none.
        Exception: one of `DAMAGE`.
    """
    if MANIFEST not in archive.namelist():
        raise ExportError(f"{what} has no {MANIFEST}; torch-model-archiver writes one")
    manifest = _json(archive, MANIFEST, MAX_MANIFEST_BYTES)
    model = manifest.get("model") if isinstance(manifest, dict) else None
    if not isinstance(model, dict):
        raise ExportError(f'{what}: {MANIFEST} has no object "model"; create the archive again')
    return model


def text_of(model: dict[str, object], key: str, what: str) -> str:
    """A field of an archive's manifest.

    Raises:
        ExportError: if it is missing, or no text.
    """
    value = model.get(key)
    if not isinstance(value, str) or not value:
        raise ExportError(f"{what}: {MANIFEST} names no {key}; create the archive with one")
    return value
