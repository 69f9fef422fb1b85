"""What somebody must change whose file or model cannot be served: sentences for error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from models.tensors import Dtype

HOW = (
    "make a TorchScript file where its Python code is: torch.jit.script(model.eval())"
    ".save('model.pt'), or torch.jit.trace(model.eval(), example_input).save('model.pt')"
)
NO_SIZE = (
    "write no batch size into the model, as x.view(4, -1) does; x.flatten(1) and "
    "x.view(x.shape[0], -1) keep the one that comes"
)
TEXT = "the client turns text into numbers, such as int64 token ids"
COMPLEX = ("complex32", "complex64", "complex128")
INPUTS: Mapping[str, str] = {
    **dict.fromkeys(
        COMPLEX,
        "take real and imaginary part as float32[..., 2], and torch.view_as_complex in the model",
    ),
    **dict.fromkeys(("str", "string", "text"), TEXT),
    "bfloat16": "take float32, and convert it in the model",
}
OUTPUTS: Mapping[str, str] = {
    **dict.fromkeys(COMPLEX, "give torch.view_as_real of it"),
    "bfloat16": "give float() of it",
}


def of_input(dtype: str) -> str:
    """For an input whose dtype no client can send; empty where there is nothing to say."""
    return f"; {INPUTS[dtype]}" if dtype in INPUTS else ""


def of_output(dtype: str) -> str:
    """For an output whose dtype no answer can carry."""
    either = f"convert it in the model to one of {', '.join(get_args(Dtype))}"
    return OUTPUTS.get(dtype, either)


def of_argument(name: str, kind: str) -> str:
    """For a model that takes something else than tensors."""
    change = TEXT if kind == "str" else "take each tensor as an argument of its own"
    return (
        f"the model's argument {name!r} is {kind}, and a server passes tensors only: {change}. Put "
        "a module around the model that takes tensors, and script that"
    )


def of_batch_axis(name: str, batch: int, shape: Sequence[int], *, scalars: bool) -> str:
    """For an output whose first axis is not the batch.

    Args:
        name: of the output.
        batch: the size of a batch.
        shape: what it has become.
        scalars: it is a single number for batches of every size.
    """
    if scalars:
        return (
            f"{name} is one number for the whole batch, as a loss is: give one for each item, of "
            "shape [n], such as x.mean(dim=1) instead of x.mean()"
        )
    if not shape:
        return (
            f"{name} loses the batch axis for a batch of {batch}, as squeeze() makes it: say which "
            "axis to take away, such as squeeze(1)"
        )
    return (
        f"the model's output does not follow the batch axis: for a batch of {batch}, {name} has "
        f"shape {list(shape)}, and its axis 0 should be {batch}. Keep the batch axis in front; "
        f"{NO_SIZE}; and where a model gives as many rows as it finds, as nonzero does, give a "
        "fixed number for each item, padded, and how many of them count"
    )


def of_data(data: bytes, what: str) -> str | None:
    """For files that are no zip archives but often taken for one."""
    if data.startswith(b"\x80"):
        return f"{what} is a pickle, as old versions of torch.save wrote them; {HOW}"
    if data.startswith(b"\x1f\x8b"):
        return (
            f"{what} is a gzip file; a model archive must be a zip file: make it with "
            "torch-model-archiver --archive-format default"
        )
    return None


def of_files(files: set[str], what: str) -> str:
    """For zip archives, by the names in them, without the first folder."""
    if "archive_format" in files:
        return f"{what} is a package of torch.export, not TorchScript; {HOW}"
    if "data.pkl" in files:
        return (
            f"{what} is what torch.save writes, a state_dict or a pickled model, not TorchScript; "
            f"{HOW}"
        )
    return f"{what} is a zip archive but not TorchScript; {HOW}"
