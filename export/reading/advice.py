"""Advice for error messages: what to change in a file or model that cannot be served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from models.tensors import Dtype

HOW = (
    "save a program from the model's Python code: torch.export.save(torch.export.export("
    "model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim('batch')},)), 'model.pt2'); or "
    "a TorchScript file: torch.jit.script(model.eval()).save('model.pt')"
)
NO_SIZE = (
    "do not write a batch size into the model, as x.view(4, -1) does; x.flatten(1) and "
    "x.view(x.shape[0], -1) keep the actual one"
)
LARGER = (
    "; if it needs larger sizes, give their bounds with --input, such as "
    "'x=float32[-1,2000<=n<=20000]'"
)
TEXT = "let the client convert text to numbers, such as int64 token ids"
COMPLEX = ("complex32", "complex64", "complex128")
INPUTS: Mapping[str, str] = {
    **dict.fromkeys(
        COMPLEX,
        "accept real and imaginary part as float32[..., 2], and call torch.view_as_complex on it",
    ),
    **dict.fromkeys(("str", "string", "text"), TEXT),
    "bfloat16": "accept float32, and convert it in the model",
}
OUTPUTS: Mapping[str, str] = {
    **dict.fromkeys(COMPLEX, "return torch.view_as_real of it"),
    "bfloat16": "return float() of it",
}


def of_input(dtype: str) -> str:
    """Return advice for an input whose dtype clients cannot send; empty if there is none."""
    return f"; {INPUTS[dtype]}" if dtype in INPUTS else ""


def of_output(dtype: str) -> str:
    """Return advice for an output whose dtype answers cannot contain."""
    either = f"convert it in the model to one of {', '.join(get_args(Dtype))}"
    return OUTPUTS.get(dtype, either)


def of_argument(name: str, kind: str) -> str:
    """Return advice for a model that accepts something other than tensors."""
    change = TEXT if kind == "str" else "accept each tensor as a separate argument"
    return (
        f"the model's argument {name!r} is {kind}, but a server passes only tensors: {change}. "
        "Wrap the model in a module that accepts tensors, and script that module"
    )


def of_batch_axis(name: str, batch: int, shape: Sequence[int], *, scalars: bool) -> str:
    """Return advice for an output whose first axis is not the batch.

    Args:
        name: of the output.
        batch: the size of a batch.
        shape: of the output.
        scalars: whether it is a single number at every batch size.
    """
    if scalars:
        return (
            f"{name} is one number for the whole batch, like a loss: return one for each item, of "
            "shape [n], such as x.mean(dim=1) instead of x.mean()"
        )
    if not shape:
        return (
            f"{name} loses the batch axis for a batch of {batch}, as with squeeze(): name the axis "
            "to remove, such as squeeze(1)"
        )
    return (
        f"the model's output does not follow the batch axis: for a batch of {batch}, {name} has "
        f"shape {list(shape)}, but its axis 0 should be {batch}. Keep the batch axis first; "
        f"{NO_SIZE}; if a model returns as many rows as it finds, as nonzero does, return a fixed "
        "number for each item, padded, and how many of them are valid"
    )


def of_data(data: bytes, what: str) -> str | None:
    """Return advice for files that are not zip archives but are often mistaken for one."""
    if _is_safetensors(data):
        return (
            f"{what} is a safetensors file, which has weights but no model: adopt the folder with "
            "its config.json, and tokenizer.json or preprocessor_config.json (adopt FOLDER --task "
            f"...), or load the weights in Python and {HOW}"
        )
    if data.startswith(b"\x80"):
        return f"{what} is a pickle, as old versions of torch.save wrote them; {HOW}"
    if data.startswith(b"\x1f\x8b"):
        return (
            f"{what} is a gzip file; a model archive must be a zip file: create it with "
            "torch-model-archiver --archive-format default"
        )
    if not data.startswith(b"PK"):
        return f"{what} is not a zip archive, as models are: copy it again, or {HOW}"
    return None


def _is_safetensors(data: bytes) -> bool:
    """Whether a file begins with the length of a JSON header, and this header."""
    size = int.from_bytes(data[:8], "little")
    return data[8:9] == b"{" and 2 <= size <= len(data) - 8


def of_files(files: set[str], what: str) -> str:
    """Return advice for a zip archive, by the names in it, without the first folder."""
    if "data.pkl" in files:
        return (
            f"{what} was written by torch.save, a state_dict or a pickled model, not TorchScript; "
            f"{HOW}"
        )
    return f"{what} is a zip archive but not TorchScript; {HOW}"
