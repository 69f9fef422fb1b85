"""Reads torch.export programs (`.pt2`) that were created elsewhere, as plain modules.

`torch.export.load` must not read an untrusted file directly: in torch 2.13 it unpickles without
limits (sample inputs, weights and constants of some kinds), loads native code in the archive,
evaluates sizes as Python, and executes the guards when it creates the module. So only the parts of
a program are read from the archive: operators of aten, raw tensors, and sizes that are plain
arithmetic. Everything else is dropped or rejected.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_unflatten

from export.errors import ExportError, reason
from export.variants.lifting import plain_module
from models.system.memory_files import memory_file
from models.tensors import MAX_SIZE

MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
TENSOR = re.compile(r"(weight|tensor)_[0-9]+")
TENSORS = re.compile(rf"data/(weights|constants)/{TENSOR.pattern}")
PLAIN = ("archive_format", "archive_version", "byteorder", ".data/version")
OPERATOR = re.compile(
    r"torch\.ops\.aten\.(?!from_file\.|save\.)[a-z_0-9]+\.[A-Za-z_0-9]+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|getitem|eq|ne|ge|gt|le|lt|and_|or_)"
    r"|torch\.sym_(max|min|int|float|not|ite|sum)"
)
SYMBOL = re.compile(r"[su][0-9]{1,6}")
# `Mul(Integer(8), Symbol('s23', positive=True, integer=True))`; *+ never backtracks.
A_SYMBOL = r"Symbol\('[su][0-9]{1,6}'(?:, (?:positive|integer|nonnegative)=True)*+\)"
SIZE = re.compile(
    rf"(?:{A_SYMBOL}|Pow\({A_SYMBOL}, Integer\([2-4]\)\)"
    r"|(?:Add|Mul|Max|Min|FloorDiv|CleanDiv|CeilDiv|Mod|PythonMod|Integer|Rational)\("
    r"|-?[0-9]{1,10}(?![0-9])|, |\))*+"
)
DECOMPOSED = "decompose it (ExportedProgram.run_decompositions), or script the model instead"
TRACED = (
    "of a model that torchao quantized, adopt a frozen trace: "
    "torch.jit.freeze(torch.jit.trace(model.eval(), example)).save('model.pt'); where torch cannot "
    "trace it, as with quantized activations, adopt the float model with --variants script,int8 "
    "--plan-precision int8"
)
SPECS = ("builtins.tuple", "builtins.list", "builtins.dict")
NAMES = ("n", "m", "k", "p", "q", "r")  # of free sizes; the program has only numbers for them


@dataclass(frozen=True, slots=True)
class Program:
    """A model from elsewhere that describes its inputs.

    Attributes:
        module: accepts the inputs as tensors, and returns a tensor, a tuple, or a dict of them.
        inputs: in the form of `adopt --input`, with the bounds that it declares.
        original: the program as torch runs it, the reference for the module; None: the module is.
    """

    module: nn.Module
    inputs: tuple[str, ...]
    original: nn.Module | None


class _Original(nn.Module):
    """A program as torch runs it, which takes the tensors of its arguments, in their order."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self._module = program.module(check_guards=False)
        self._in_spec = program.call_spec.in_spec
        inputs = program.graph_signature.input_specs
        self._arguments = [each.arg for each in inputs if each.kind is InputKind.USER_INPUT]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call it with tensors by name, in dicts and in lists, as it was exported."""
        left = iter(tensors)
        flat = [
            each.value if isinstance(each, ConstantArgument) else next(left)
            for each in self._arguments
        ]
        args, kwargs = tree_unflatten(flat, self._in_spec)
        return self._module(*args, **kwargs)


def read_program(data: bytes, what: str) -> Program:
    """Read the program in a `.pt2` file of `torch.export.save`.

    Args:
        data: the file, whose directory `models.system.archive` has checked.
        what: its name, for messages.

    Raises:
        ExportError: if it is not a program, or contains parts that must not be loaded.
    """
    with memory_file() as (clean, _):
        try:
            _clean(data, what, clean)
        except (TypeError, LookupError, AttributeError) as error:  # JSON of another structure
            raise ExportError(f"{what} is malformed: {reason(error)}") from error
        clean.seek(0)
        try:
            program = torch.export.load(clean)
        except Exception as error:  # of any class
            raise ExportError(f"torch.export.load cannot read {what}: {reason(error)}") from error
    return Program(plain_module(program), tuple(_inputs(program, what)), _Original(program))


def _clean(data: bytes, what: str, target: BinaryIO) -> None:
    """Reduce an archive to the parts of a program.

    Raises:
        ExportError: if loading it needs anything else.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        names = {name.partition("/")[2]: name for name in old.namelist()}
        if missing := [name for name in (MODEL, *CONFIGS) if name not in names]:
            raise ExportError(
                f"{what} has no {missing[0]}: it was not written by torch.export.save of torch "
                f"{torch.__version__}; a package of AOTInductor is machine code and is not "
                "adopted"
            )
        for name in CONFIGS:
            _check_tensors(_json(old.read(names[name]), what), what)
        model = _json(old.read(names[MODEL]), what)
        _check_model(model, what)
        model["guards_code"] = []
        for name, entry in names.items():
            if name in CONFIGS or name in PLAIN or TENSORS.fullmatch(name):
                new.writestr(f"archive/{name}", old.read(entry))
        new.writestr(f"archive/{MODEL}", json.dumps(model))
        new.writestr(f"archive/{SAMPLES}", b"")


def _json(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{what} is not JSON: {reason(error)}") from error


def _check_tensors(config: Any, what: str) -> None:
    for name, payload in config["config"].items():
        if payload["use_pickle"] or not TENSOR.fullmatch(payload["path_name"]):
            raise ExportError(
                f"{what} has {name!r} as a pickle, which runs code when it is loaded: keep tensors "
                "plain (no subclasses, no quantized ones) and no objects in the model; "
                f"{TRACED}"
            )


def _check_model(model: Any, what: str) -> None:
    """Check everything that torch would evaluate, and drop what it does not need.

    Raises:
        ExportError: at the first part that is not allowed.
    """
    for name in model.get("range_constraints", {}):
        if not SYMBOL.fullmatch(name):
            raise ExportError(f"{what} has a size named {name[:50]!r}, which torch would evaluate")
    for part in _parts(model):
        target, size = part.get("target"), part.get("expr_str")
        if isinstance(target, str) and "inputs" in part:
            if not OPERATOR.fullmatch(target):
                raise ExportError(
                    f"{what} calls {target[:80]!r}; only operators of aten and arithmetic of sizes "
                    f"are allowed: {TRACED if 'torchao' in target else DECOMPOSED}"
                )
            part["metadata"] = {}
        if size is not None and not (isinstance(size, str) and SIZE.fullmatch(size)):
            raise ExportError(f"{what} has the size {str(size)[:50]!r}, which torch would evaluate")
        for field in ("in_spec", "out_spec"):
            if field in part:
                _check_spec(part[field], what)


def _check_spec(text: Any, what: str) -> None:
    for part in _parts(_json(str(text).encode(), what)):
        if part.get("type") is not None and part["type"] not in SPECS:
            raise ExportError(
                f"{what} takes or returns a {part['type']}: only tensors, and tuples, lists and "
                "dicts of them, are allowed"
            )


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _inputs(program: torch.export.ExportedProgram, what: str) -> Iterator[str]:
    """Yield each input in the form of `adopt --input`; free sizes are called n, m, k and so on.

    Raises:
        ExportError: if an input is not a tensor, or its batch is fixed.
    """
    names: dict[str, str] = {}
    specs = program.graph_signature.input_specs
    tensors = {
        each.arg.name
        for each in specs
        if each.kind is InputKind.USER_INPUT and not isinstance(each.arg, ConstantArgument)
    }
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in tensors:
            continue
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not value.ndim:
            raise ExportError(f"{what}: input {node.name!r} is not a tensor with a batch axis")
        sizes: list[Any] = list(value.shape)
        batch = sizes.pop(0)
        if isinstance(batch, int):
            raise ExportError(
                f"{what} accepts {node.name!r} only in batches of {batch}: export it with a free "
                "batch, torch.export.export(model, example, dynamic_shapes=({0: "
                "torch.export.Dim('batch')}, ...)), and with an example of at least two items"
            )
        dims = [_size(size, program.range_constraints, names) for size in sizes]
        dtype = str(value.dtype).removeprefix("torch.")
        yield f"{node.name}={dtype}[{','.join(['-1', *dims])}]"


def _size(size: Any, ranges: Mapping[Any, Any], names: dict[str, str]) -> str:
    """Return a fixed size, or the name and the bounds of a free one."""
    if isinstance(size, int):
        return str(size)
    symbol = size.node.expr
    if not symbol.is_Symbol:
        return "-1"  # for example twice another size; adopt finds out what works
    free = next(each for each in (*NAMES, str(symbol)) if each not in names.values())
    name = names.setdefault(str(symbol), free)
    bounds = ranges.get(symbol)
    most = bounds.upper if bounds is not None and bounds.upper.is_Integer else MAX_SIZE
    least = max(1, int(bounds.lower)) if bounds is not None else 1
    return f"{least}<={name}" + (f"<={most}" if most < MAX_SIZE else "")
