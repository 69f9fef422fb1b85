"""The option --input, and its mistakes."""

from __future__ import annotations

import pytest

from export.errors import UsageError
from export.reading.declared import read_inputs


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["float32[-1,3,224,224]"], ["input=float32[-1,3,224,224]"]),
        (["float32[-1]", "x=bool[ -1 , 2 ]"], ["input_0=float32[-1]", "x=bool[-1,2]"]),
        (["int64[-1,2<=seq<=512] in 0..49"], ["input=int64[-1,2<=seq<=512] in 0..49"]),
        (["int64[-1,seq] in -5.."], ["input=int64[-1,seq<=1024] in -5.."]),
        (
            ["x=float32[-1,n,4]", "e=int64[-1,2,-1] in 0..<n"],
            ["x=float32[-1,n<=1024,4]", "e=int64[-1,2,-1] in 0..<n"],
        ),
        (["order=int64[-1,n] in ..<n"], ["order=int64[-1,n<=1024] in ..<n"]),
        (
            ["ids=int64[-1,seq<=512]", "mask=bool[-1,2<=seq]"],
            ["ids=int64[-1,2<=seq<=512]", "mask=bool[-1,2<=seq<=512]"],
        ),
        (["float32[-1,n,n,-1]"], ["input=float32[-1,n<=1024,n<=1024,-1]"]),
        (["float32[-1,2000<=h]"], ["input=float32[-1,2000<=h<=2000]"]),
        (
            ["age=float32[-1]  or nan", "t=float64[-1,n] or nan"],
            ["age=float32[-1] or nan", "t=float64[-1,n<=1024] or nan"],
        ),
    ],
)
def test_printed_inputs_can_be_read_again(options: list[str], text: list[str]) -> None:
    inputs = read_inputs(options)
    assert [str(each.spec) for each in inputs] == text
    again = read_inputs(text)  # and can be said again as they are shown
    assert [each.spec for each in again] == [each.spec for each in inputs]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["int64[-1,se q]"], "'se q' is not a size: a size is a whole number, -1 if it is free,"),
        (["int64[-1,seq<512]"], "'seq<512' is not a size"),
        (["int64[-1,512>=seq]"], "such as 1<=seq<=512"),
        (["int64[-1,99999999999]"], "'99999999999' is not a size"),
        (["int64[batch,seq]"], "axis 0 is the batch and must be -1, got 'batch'"),
        (["int64[-1,9<=seq<=8]"], "sizes of 9 to 8: the range is empty"),
        (["int64[-1] or nan"], "'input': only floats can be NaN, not int64"),
        (["float32[-1] or null"], "`or nan` for floats that may be missing"),
        (["int64[-1] in 5..4"], "the range 5..4 is empty, or outside of int64"),
        (["int8[-1] in 0..300"], "the range 0..300 is empty, or outside of int8, which is"),
        (["float32[-1] in 0..1"], "only integers have a range, not float32"),
        (["int64[-1] in 0-49"], "is not dtype[shape], such as --input 'float32[-1,3,224,224]', or"),
        (["x=float32[-1,n]", "e=int64[-1,2] in 0..<m"], "'e' are less than the size 'm', but no"),
        (["int64[-1,n] in 0..<9"], "in 0..<n for indices into the free size n"),
        (["a=int64[-1,seq<=4]", "b=int64[-1,seq<=5]"], "'seq' is at most 4 in one place and 5 in"),
    ],
)
def test_wrong_declarations_are_reported(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as excinfo:
        read_inputs(arguments)
    assert str(excinfo.value).startswith("--input")
    assert message in str(excinfo.value)


@pytest.mark.parametrize(
    ("given", "arguments", "names"),
    [
        (["float32[-1]"], ["x"], ["x"]),
        (["float32[-1]", "b=float32[-1]"], ["x", "y"], ["x", "b"]),
        (["float32[-1]", "x=float32[-1]"], ["x", "y"], ["input_0", "x"]),
        (["float32[-1]", "float32[-1]"], ["input.1", "_y"], ["input_0", "input_1"]),
        (["float32[-1]", "float32[-1]"], ["x"], ["x", "input_1"]),
    ],
)
def test_inputs_without_a_name_have_those_of_the_arguments(
    given: list[str], arguments: list[str], names: list[str]
) -> None:
    assert [each.name for each in read_inputs(given, (), arguments)] == names
