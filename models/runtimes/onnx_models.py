"""Loads and runs ONNX models by ONNX Runtime.

It is an optional package (`torchlane[onnx]`), and imported when the first model loads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from models.runtimes.base import SharedModels, VariantFile, on_all_cores
from models.system.archive import ArchiveError
from models.system.extras import import_package

# ONNX Runtime reports its use over the internet, unless this is set before its import. Set here,
# because no thread that might read the environment runs yet.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

DOMAINS = ("", "ai.onnx", "ai.onnx.ml")  # of the standard's operators
BUILT_IN_DOMAINS = ("com.microsoft", "com.ms", "ai.onnx.")  # built in, whatever a file defines
# onnx.proto: the parts of each kind of message that can contain tensors or operators, by number.
PARTS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
# The name and the domain of an operator that is called, and of one that is defined.
NAMES: Mapping[str, tuple[int, int]] = {"node": (4, 7), "function": (1, 10)}
EXTERNAL, LOCATION = 13, 14  # of a tensor: the file that has its data, and whether there is one
# What its errors have besides their text: a code, a file without a name, a place in its source.
NOISE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|/\S+\.(?:h|cc):\d+ .*?\) "
)
NO_MEMORY = ("Failed to allocate memory", "bad_alloc")
VARINT, BYTES = 0, 2  # how a field is encoded
FIXED_BYTES: Mapping[int, int] = {1: 8, 5: 4}


class OnnxForm:
    """Runs a model without the GIL; several threads may share it.

    Args:
        model: ONNX Runtime's session.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._inputs = [each.name for each in model.get_inputs()]

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run one forward.

        Raises:
            MemoryError: if it does not fit into memory.
            RuntimeError: if it fails, for example because of a wrong shape.
            ValueError: if it is called with another number of inputs.
        """
        if len(tensors) != len(self._inputs):
            raise ValueError(f"{len(tensors)} inputs given, but {len(self._inputs)} are expected")
        arrays = [tensor.contiguous().numpy() for tensor in tensors]
        outputs = _call(self.model.run, None, dict(zip(self._inputs, arrays, strict=True)))
        return list(map(torch.from_numpy, outputs))


_MODELS: SharedModels[OnnxForm] = SharedModels()


def onnxruntime() -> Any:
    """Import the package.

    Raises:
        NotInstalled: if it is missing.
    """
    return import_package("onnxruntime", "ONNX Runtime", "onnx")


def load_onnx(file: VariantFile, *, keep: bool = False, optimized: bool = True) -> OnnxForm:
    """Load a model for this thread's number of threads; equal ones in use share their weights.

    Args:
        file: the model.
        keep: whether to keep a batch's memory for the next one, up to the largest; for fixed sizes
            only, because each other size would take more.
        optimized: whether its graph is changed so that it takes less time.

    Raises:
        NotInstalled: without ONNX Runtime.
        ArchiveError: if the file must not be opened.
        RuntimeError: if ONNX Runtime cannot read it.
    """
    package = onnxruntime()
    threads = torch.get_num_threads()

    def load(path: str) -> OnnxForm:
        check_onnx(Path(path).read_bytes())
        return OnnxForm(_session(package, path, threads, keep=keep, optimized=optimized))

    return _MODELS.get(file, (threads, keep, optimized), load)


def check_onnx(data: bytes, what: str = "the ONNX model") -> None:
    """Check that a model is complete: it names no other file, and no operators of others.

    ONNX Runtime would read weights from any file that a model names.

    Raises:
        ArchiveError: if it is not.
    """
    try:
        operators = _operators(data, what)
    except EOFError as error:
        raise ArchiveError(
            f"{what} is not an ONNX model, or is damaged: copy or export it again"
        ) from error
    functions = operators["function"]
    for name, domain in sorted(operators["node"] | functions):
        is_standard, is_own = domain in DOMAINS, (name, domain) in functions
        if is_standard == is_own or (domain.startswith(BUILT_IN_DOMAINS) and not is_standard):
            raise ArchiveError(
                f"{what} has the operator {name!r} of {domain!r}, which is not in the ONNX "
                "standard: export the model without it"
            )


def _operators(data: bytes, what: str) -> Mapping[str, set[tuple[str, str]]]:
    """Return name and domain of each operator that a model calls or defines.

    Raises:
        ArchiveError: if a tensor is in another file.
        EOFError: if the model is damaged, or has no graph.
    """
    operators: dict[str, set[tuple[str, str]]] = {kind: set() for kind in NAMES}
    kinds = set()
    messages = [("model", memoryview(data))]
    while messages:
        kind, message = messages.pop()
        kinds.add(kind)
        names = dict.fromkeys(NAMES.get(kind, ()), "")
        for number, value in _fields(message):
            if kind == "tensor" and (number == EXTERNAL or (number == LOCATION and value)):
                raise ArchiveError(
                    f"{what} has weights in another file: save it as one, "
                    "onnx.save(onnx.load('model.onnx'), 'whole.onnx')"
                )
            if isinstance(value, int):
                continue
            if number in PARTS[kind]:
                messages.append((PARTS[kind][number], value))
            elif number in names:
                names[number] = str(value, "utf-8", "replace")
        if names:
            name, domain = names.values()
            operators[kind].add((name, domain))
    if "graph" not in kinds:
        raise EOFError
    return operators


def _session(package: Any, path: str, threads: int, *, keep: bool, optimized: bool) -> Any:
    levels = package.GraphOptimizationLevel
    options = package.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.execution_mode = package.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads  # a number also means that they are not pinned
    options.inter_op_num_threads = 1
    # Threads that wait would take the cores of other replicas and of the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = keep
    options.enable_mem_pattern = False  # it keeps a plan for each shape
    options.log_severity_level = 4  # errors are raised
    options.add_session_config_entry("session.load_model_format", "ONNX")  # as was checked
    with on_all_cores():
        return _call(
            package.InferenceSession,
            path,
            options,
            providers=["CPUExecutionProvider"],
            read_config_from_model=0,
        )


def _call(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call ONNX Runtime, whose errors are of many classes.

    Raises:
        MemoryError: if memory is short.
        RuntimeError: for every other reason.
    """
    try:
        return call(*arguments, **options)
    except Exception as error:
        text = " ".join(NOISE.sub("", str(error)).split())
        is_memory_short = any(words in text for words in NO_MEMORY)
        raise (MemoryError if is_memory_short else RuntimeError)(text) from error


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the fields of a message in Protocol Buffers: the number, and its bytes or integer.

    Raises:
        EOFError: if it is damaged.
    """
    at = 0
    while at < len(message):
        key, at = _integer(message, at)
        if key >= 1 << 32:  # other readers ignore higher bits, and would find another field
            raise EOFError
        if key & 7 == VARINT:
            value, at = _integer(message, at)
            yield key >> 3, value
            continue
        if key & 7 == BYTES:
            size, at = _integer(message, at)
        elif key & 7 in FIXED_BYTES:
            size = FIXED_BYTES[key & 7]
        else:
            raise EOFError
        if size > len(message) - at:
            raise EOFError
        yield key >> 3, message[at : at + size]
        at += size


def _integer(message: memoryview, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place after it."""
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise EOFError
