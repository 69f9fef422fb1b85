"""The options of `--codec audio`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from export.errors import UsageError
from models.codec_specs import check_sound
from models.inputs.audio import MAX_RATE, MIN_RATE
from models.tensors import TensorSpec

EXAMPLE = "--input 'audio=float32[-1,400<=n]'"


def fields_of(args: argparse.Namespace, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the fields of the codec that the options state.

    Raises:
        UsageError: if the rate is missing or wrong, or the inputs are not those of sounds.
    """
    rate = rate_of(args)
    try:
        check_sound(inputs)
    except ValueError as error:
        raise UsageError(f"--codec audio: {error}; for example {EXAMPLE}") from error
    options = {} if args.resampling is None else {"resampling": args.resampling}
    return {"rate": rate, **options}


def rate_of(args: argparse.Namespace) -> int:
    """Return the samples per second of the input.

    Raises:
        UsageError: if the rate is missing or wrong.
    """
    rate: int | None = args.rate
    if rate is None or not MIN_RATE <= rate <= MAX_RATE:
        detail = "" if rate is None else f", got {rate}"
        raise UsageError(
            f"--codec audio needs --rate, the samples per second of the input, {MIN_RATE} to "
            f"{MAX_RATE}{detail}"
        )
    return rate
