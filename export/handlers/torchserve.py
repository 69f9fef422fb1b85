"""TorchServe archives as handlers: unpacked, next to a module with the class that runs them."""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from export.errors import ExportError, UsageError
from export.handlers.host import Answer, ask_server
from export.handlers.source import told_by
from export.reading.mar import model_part, text_of
from models.system.archive import DAMAGE, ArchiveError, check_archive, read_entry
from torchlane.torchserve.names import MODULES

MODULE, CLASS = "torchlane_archive", "Archive"
ENTRY = f"{MODULE}:{CLASS}"
REQUIREMENTS = "requirements.txt"
FILES = ("serializedFile", "configFile", "requirementsFile")  # that a manifest may name
SERVER_S = 30.0
CHANGES = ("scores", "boxes", "masks")  # of a codec: what makes outputs others than the network's
OWN = "ts.torch_handler."
BATCH_SIZE = re.compile(r"^batchSize\s*:\s*([0-9]{1,4})\s*(?:#.*)?$", re.MULTILINE)
# A line of requirements that names a package, and not a file, an address or an option.
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:[\[<>=!~; #]|$)")
STREAMS = "send_intermediate_predict_response"
STREAMS_HINT = "which fails when it is called: write a torchlane.Handler whose predict yields"
CUDA = "no CUDA device is visible to it: the served models have them"
# Prints those of the packages that it is given and that are not installed.
MISSING = """
import importlib.metadata as metadata, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        missing.append(name)
print(json.dumps(missing))
"""
SOURCE = '''\
"""Runs the handler of a TorchServe archive, whose files are next to this one."""

import torchlane.torchserve


class {name}(torchlane.torchserve.Handler):
    {about!r}

    models = {models!r}
    max_batch_size = {batch_size}
    model_inputs = {inputs!r}
    model_outputs = {outputs!r}
    model_is_tensor = {is_tensor}
'''


class Archive(NamedTuple):
    """An unpacked archive.

    Attributes:
        model: its name.
        weights: the file of its model; None: it has none.
        requirements: the file with the packages that it needs.
        warnings: sentences on what may not work.
    """

    model: str
    weights: str | None
    requirements: str
    warnings: tuple[str, ...]


class _Signature(NamedTuple):
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    is_tensor: bool = True


def unpack(
    file: Path, folder: Path, model: str | None, server: str | None, returns: str | None
) -> Archive:
    """Write the files of an archive, and the module that runs them, into a folder.

    Args:
        file: the archive.
        folder: empty.
        model: NAME or NAME/VERSION of the served model that its handler uses in place of the
            archive's own; None: the handler loads the model itself.
        server: a URL of a server with that model.
        returns: "tensor" or "outputs"; None: what the archive's TorchScript says.

    Raises:
        UsageError: if an option is missing.
        ExportError: if the archive is damaged, or cannot be run.
    """
    what = file.name
    try:
        data = file.read_bytes()
        names = check_archive(io.BytesIO(data), what, of_torch=False)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            about = model_part(archive, what)
            handler = text_of(about, "handler", what)
            file_of = {key: _entry_of(about, key, names) for key in FILES}
            weights = b""
            for name in (each for each in names if not each.endswith("/")):
                content = read_entry(archive, archive.getinfo(name))
                if name == file_of["serializedFile"]:
                    weights = content
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except ArchiveError as error:
        raise ExportError(str(error)) from error
    except DAMAGE as error:
        raise ExportError(f"{what} is damaged: {error}") from error
    script = _script(folder, handler, what)
    tree = None if script is None else _parsed(script)
    signature = _Signature()
    if model is not None:
        signature = _signature(model, server, returns, weights)
    version = str(about.get("modelVersion", ""))
    (folder / f"{MODULE}.py").write_text(
        SOURCE.format(
            name=CLASS,
            about=f"The handler of {what}" + (f", version {version}" if version else ""),
            models=() if model is None else (model,),
            batch_size=_batch_size(folder, file_of["configFile"]),
            inputs=signature.inputs,
            outputs=signature.outputs,
            is_tensor=signature.is_tensor,
        )
    )
    warnings = () if script is None or tree is None else tuple(_warnings(script.name, tree))
    requirements = file_of["requirementsFile"] or REQUIREMENTS
    name = text_of(about, "modelName", what)
    return Archive(name, file_of["serializedFile"], requirements, warnings)


def _entry_of(about: dict[str, object], key: str, names: Sequence[str]) -> str | None:
    """A file that the manifest names, if the archive has it."""
    name = about.get(key)
    return name if isinstance(name, str) and name in names else None


def missing_packages(folder: Path, requirements: str, python: str) -> tuple[str, ...]:
    """The packages that an archive needs and an interpreter lacks; versions are not compared.

    Args:
        folder: with the archive's files.
        requirements: the file that names them.
        python: the interpreter.

    Raises:
        UsageError: if the interpreter cannot be run.
    """
    file = folder / requirements
    if not file.is_file():
        return ()
    lines = file.read_text(errors="replace").splitlines()
    names = [match[1] for match in map(REQUIREMENT.match, lines) if match is not None]
    return tuple(told_by(python, MISSING, names)) if names else ()


def _script(folder: Path, handler: str, what: str) -> Path | None:
    """The handler's file; None: it is one of TorchServe's own."""
    name = handler.partition(":")[0].rpartition("/")[2].removesuffix(".py")
    script = folder / f"{name}.py"
    if script.is_file():
        return script
    if f"{OWN}{name}" not in MODULES:
        known = ", ".join(each.removeprefix(OWN) for each in MODULES if each.startswith(OWN))
        raise ExportError(
            f"{what} has no file {name}.py, and {name} is none of the handlers of TorchServe that "
            f"can be run: {known}"
        )
    return None


def _parsed(script: Path) -> ast.Module:
    try:
        return ast.parse(script.read_bytes(), script.name)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExportError(f"{script.name} cannot be read as Python: {error}") from error


def _warnings(name: str, tree: ast.Module) -> Iterator[str]:
    """What cannot work in a process of a handler, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method == "cuda":
                yield f"{name}:{node.lineno} calls .cuda(): {CUDA}"
            elif method == "data_ptr":
                yield f"{name}:{node.lineno} reads the address of a tensor: {CUDA}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [each.name for each in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                if module.startswith("ts.") and not _is_known(module):
                    yield f"{name}:{node.lineno} imports {module}, which does not exist here"
            if any(each.name == STREAMS for each in node.names):
                yield f"{name}:{node.lineno} imports {STREAMS}, {STREAMS_HINT}"


def _is_known(module: str) -> bool:
    return any(each == module or each.startswith(f"{module}.") for each in MODULES)


def _batch_size(folder: Path, file: str | None) -> int:
    """The batch size in an archive's configuration file; 1 if it has none."""
    if file is None:
        return 1
    match = BATCH_SIZE.search((folder / file).read_text(errors="replace"))
    return max(1, int(match[1])) if match is not None else 1


def _signature(model: str, server: str | None, returns: str | None, weights: bytes) -> _Signature:
    if server is None:
        raise UsageError(
            f"--model {model} needs a server that has it: start one with `torchlane serve`, and "
            "give its URL with --server http://127.0.0.1:8000"
        )
    name, _, version = model.partition("/")
    answer: Answer = ask_server(server, "GET", f"/models/{name}?full=true", b"", {}, SERVER_S)
    try:
        info = json.loads(answer.body)
        if answer.status != 200:
            raise UsageError(f"--server {server} has no model {model}: {info['error']}")
        inputs, outputs = (
            tuple(str(each["name"]) for each in info[part]) for part in ("inputs", "outputs")
        )
        codec, served = (info["manifest"] or {}).get("codec") or {}, info["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"--server {server} is not a Torchlane server") from error
    if info.get("kind") == "handler" or not inputs or not outputs:
        raise UsageError(f"--model {model} is a handler, or none of its versions is loaded")
    if version and str(served) != version:
        raise UsageError(
            f"--model {model}: requests without a version get version {served}, whose inputs may "
            f"differ; serve {version} as the newest one, or name the model alone"
        )
    for what in CHANGES:
        if codec.get(what) not in (None, "none"):
            raise UsageError(
                f"--model {model} changes its outputs ({what}: {codec[what]}), which the handler "
                "expects as the network gives them: adopt it again under another name, with "
                "--codec tensor --scores none"
            )
    is_tensor = len(outputs) == 1 and _returns_tensor(returns, weights)
    return _Signature(inputs, outputs, is_tensor)


def _returns_tensor(returns: str | None, weights: bytes) -> bool:
    """Whether the network with one output returns it alone, and not in a tuple or a dict."""
    if returns is not None:
        return returns == "tensor"
    import torch  # noqa: PLC0415 # slow, and few archives need it

    load: Callable[..., Any] = torch.jit.load  # untyped in torch
    try:
        (result,) = load(io.BytesIO(weights), map_location="cpu").forward.schema.returns
    except (RuntimeError, AttributeError, ValueError):
        raise UsageError(
            "the archive's model is not TorchScript: say with --model-returns whether it returns "
            "a tensor, or outputs in a tuple or dict (tensor, outputs)"
        ) from None
    return str(result.type) == "Tensor"
