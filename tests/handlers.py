"""Artifacts of handlers made by hand, from the text of a file."""

from __future__ import annotations

import datetime as dt
import platform
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from export.artifact import digest_of
from models.handlers import (
    CODE_FILE,
    CalledModel,
    HandlerExample,
    HandlerLimits,
    HandlerManifest,
    declared_tensors,
    pack_code,
)
from models.manifest import DIGEST_FILE, MANIFEST_FILE, SCHEMA_VERSION
from models.tensors import TensorSpec
from tests.artifacts import replace_manifest
from torchlane.handlers.declarations import read_tensors

JSON, NPZ = "application/json", "application/x-npz"


class Example(NamedTuple):
    """A request, and the answer to it."""

    body: bytes
    answer: bytes
    media_type: str = JSON
    answer_type: str = JSON
    status: int = 200


def asks(body: object, answer: object) -> Example:
    """An example in JSON."""
    return Example(orjson.dumps(body), orjson.dumps(answer))


def declared(texts: Mapping[str, str]) -> tuple[TensorSpec, ...]:
    """The inputs or outputs of a class."""
    return declared_tensors(read_tensors(texts, "inputs"))


def write_handler(
    root: Path,
    name: str,
    version: int,
    source: str,
    examples: Sequence[Example],
    models: Sequence[str] = (),
    *,
    entry: str = "shop:Shop",
    streams: bool = False,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    **limits: Any,
) -> Path:
    """Write root/name/version; the source becomes the module that `entry` names."""
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    module = folder / f"{entry.partition(':')[0]}.py"
    module.write_text(textwrap.dedent(source))
    (folder / CODE_FILE).write_bytes(pack_code(module))
    module.unlink()
    golden = []
    for index, each in enumerate(examples):
        request, answer = f"request-{index}", f"answer-{index}"
        (folder / request).write_bytes(each.body)
        (folder / answer).write_bytes(each.answer)
        golden.append(
            HandlerExample(
                request=request,
                media_type=each.media_type,
                answer=answer,
                status=each.status,
                answer_type=each.answer_type,
            )
        )
    manifest = HandlerManifest(
        schema_version=SCHEMA_VERSION,
        kind="handler",
        model=name,
        version=version,
        description="a test's handler",
        entry=entry,
        models=tuple(CalledModel(name=each) for each in models),
        streams=streams,
        inputs=declared(inputs or {}),
        outputs=declared(outputs or {}),
        limits=HandlerLimits(**{"memory_bytes": 1 << 30, **limits}),
        golden=tuple(golden),
        python_version=platform.python_version(),
        files={path.name: digest_of(path) for path in sorted(folder.iterdir())},
        created_at=dt.datetime.now(dt.UTC),
    )
    assert not {MANIFEST_FILE, DIGEST_FILE} & set(manifest.files)
    replace_manifest(folder, manifest.model_dump_json())
    return folder
