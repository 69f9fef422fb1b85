"""The options --categories and --unknown, and their mistakes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from pydantic import JsonValue

from export.errors import UsageError
from export.options.payloads import add_categories
from export.reading.categories import read_categories, with_names, with_ranges
from export.reading.codecs import with_categories
from export.reading.declared import read_inputs
from models.categories import MAX_CATEGORIES, Categories
from models.codec_specs import TensorCodecSpec
from models.tensors import TensorSpec

FILE = "Oslo\r\nRoma \n75001\n"


def read(folder: Path, *arguments: str, content: str | bytes = FILE) -> tuple[Categories, ...]:
    (folder / "c.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    parser = argparse.ArgumentParser()
    add_categories(parser)
    return read_categories(parser.parse_args([each.format(folder / "c.txt") for each in arguments]))


def test_a_name_per_line(tmp_path: Path) -> None:
    (result,) = read(tmp_path, "--categories", "city={}", "--unknown", "city=0")
    assert result == Categories(input="city", names=("Oslo", "Roma", "75001"), unknown=0)
    (result,) = read(tmp_path, "--categories", "city={}", content="\ufeffa\nb")
    assert result == Categories(input="city", names=("a", "b"))
    assert read(tmp_path) == ()


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["--categories", "city"], FILE, "--categories 'city': must be the name of an input, ="),
        (["--categories", "c={}", "--categories", "c={}"], FILE, "give each input once"),
        (["--categories", "c={}", "--unknown", "d=3"], FILE, "has no --categories d=FILE"),
        (["--categories", "c={}", "--unknown", "c=-1"], FILE, "must be a whole number from 0"),
        (["--categories", "c={}"], "a\n\nb", "line 2 of .* is empty"),
        (["--categories", "c={}"], "a\nb\na", "the categories of 'c' have 'a' twice"),
        (["--categories", "c={}"], b"\xff\n", "is not UTF-8"),
        (["--categories", "c={}.no"], FILE, "cannot read .*No such file"),
        (["--categories", "c=https://host/c.txt"], FILE, "https:// is not supported"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], content: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, *arguments, content=content)


def test_names_must_fit_into_the_manifest(tmp_path: Path) -> None:
    """Before the proofs, which take long."""
    names = "\n".join(f"Town {n}, Region: 7" for n in range(60_000))
    with pytest.raises(UsageError, match=r"60,000 names with 120,000 commas, .* shorten the names"):
        read(tmp_path, "--categories", "c={}", content=names)
    many = "\n".join(map(str, range(MAX_CATEGORIES)))
    assert len(read(tmp_path, "--categories", "c={}", content=many)[0].names) == MAX_CATEGORIES


def test_an_input_without_a_range_gets_that_of_the_indices() -> None:
    names = [Categories(input=name, names=("a", "b"), unknown=5) for name in ("c", "d")]
    inputs = read_inputs(["c=int64[-1]", "d=int64[-1] in 0..9", "e=int64[-1]"])
    ranged = with_ranges(inputs, names)
    assert [str(each.spec) for each in ranged] == [
        "c=int64[-1] in 0..5",
        "d=int64[-1] in 0..9",
        "e=int64[-1]",
    ]
    assert [each.range_option for each in ranged] == ["--unknown c=5", "--input", "--input"]


@pytest.mark.parametrize(
    ("example", "inputs", "text"),
    [
        ({"c": 1, "x": 1}, ["c", "x"], {"c": "b", "x": 1}),
        ({"c": [[0, 5]], "x": 1}, ["c", "x"], {"c": [["a", 5]], "x": 1}),
        ([1, 0], ["c"], ["b", "a"]),
        (1, ["c"], "b"),
        (None, ["c", "x"], None),
    ],
)
def test_examples_have_names(example: JsonValue, inputs: list[str], text: JsonValue) -> None:
    assert with_names(example, inputs, [Categories(input="c", names=("a", "b"))]) == text


def test_a_codec_of_numbers_takes_the_categories_of_its_inputs() -> None:
    colours = Categories(input="colour", names=("red", "blue"))
    inputs = [TensorSpec(name="colour", dtype="int64", shape=(-1,))]
    codec = with_categories(TensorCodecSpec(labels=("a", "b")), [colours], inputs)
    assert codec == TensorCodecSpec(labels=("a", "b"), categories=(colours,))
    assert with_categories(codec, [], inputs) is codec
    elsewhere = [TensorSpec(name="x", dtype="int64", shape=(-1,))]
    with pytest.raises(UsageError, match=r"^--categories: .*colour"):
        with_categories(TensorCodecSpec(), [colours], elsewhere)
