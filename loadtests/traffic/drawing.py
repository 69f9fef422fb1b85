"""Draws new inputs: variants of the reference inputs, each only once."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from loadtests.errors import LoadTestError
from loadtests.traffic.answers import CorrectAnswer
from loadtests.traffic.payloads import discrete_item, discrete_numbers, json_template
from loadtests.traffic.reference_inputs import References
from loadtests.traffic.sentences import SENTENCES, text_json
from loadtests.traffic.target import Target
from models.codec_specs import TextCodecSpec

MIN_INPUTS = 2**20  # fewer would be used up within minutes
MIN_BITS = 40  # of an item with only zeros and ones


class WorkloadError(LoadTestError):
    """The workload does not suit the model; the message has the reason and alternatives."""


@dataclass
class InputSource:
    """The source of a workload's inputs.

    Attributes:
        references: its items with known answers.
        seed: equal seeds draw equal inputs, different seeds different ones.
    """

    target: Target
    references: References
    seed: int
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # nosec B311 # repeatable, not secret


class UniqueItems:
    """Draws distinct items, as JSON.

    Raises:
        WorkloadError: if an item has too few numbers to vary.
    """

    def __init__(self, source: InputSource) -> None:
        self._source = source
        codec = source.target.codec
        self._text = codec if isinstance(codec, TextCodecSpec) else None
        self._discrete = not any(spec.dtype.startswith("float") for spec in source.target.inputs)
        if self._text is not None:
            self._numbers = itertools.count(source.random.randrange(SENTENCES))
        elif self._discrete:
            bits = discrete_numbers(source.target.inputs)
            _check_enough(source, 2**bits, 2**MIN_BITS)
            self._numbers = itertools.count(source.random.getrandbits(bits))
        else:
            self._variants = Variants(
                source, tuple(reference.text.variants for reference in source.references.items)
            )

    def draw(self) -> tuple[bytes, CorrectAnswer | None]:
        """Return the JSON value of a new item, and its correct answer if known."""
        if self._text is not None:
            return text_json(self._text, next(self._numbers)), None
        if self._discrete:
            item = discrete_item(self._source.target.inputs, next(self._numbers))
            return json_template(item, ()).fill(0), None
        index, number = self._variants.next()
        reference = self._source.references.items[index]
        return reference.text.fill(number), reference.variant_answer


class Variants:
    """Draws pairs of a reference and one of its variants, each pair once."""

    def __init__(self, source: InputSource, variants: tuple[int, ...]) -> None:
        _check_enough(source, sum(variants), MIN_INPUTS)
        self._random = source.random
        self._variants = variants
        self._start = source.random.getrandbits(64)
        self._counts = [0] * len(variants)

    def next(self) -> tuple[int, int]:
        """Return the index of a reference, and the number of its variant.

        Raises:
            WorkloadError: if all of them are used up.
        """
        index = self._random.randrange(len(self._variants))
        count = self._counts[index]
        if count >= self._variants[index]:
            raise WorkloadError(
                f"all {self._variants[index]} variants of an item are used up; shorten the load"
            )
        self._counts[index] = count + 1
        return index, self._start + count


def _check_enough(source: InputSource, inputs: int, least: int) -> None:
    if inputs < least:
        raise WorkloadError(
            f"an input of {source.target.model} has only {inputs} variants, but {least} are "
            "needed: a run would use them up; use `repeated`"
        )
