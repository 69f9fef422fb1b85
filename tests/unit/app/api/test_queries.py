"""Query parameters that a call does not have."""

from __future__ import annotations

import pytest

from app.api.queries import MAX_PARAMETERS, check_query, parameters_of
from app.errors import InvalidInput, UnknownParameter


@pytest.mark.parametrize(
    ("name", "known", "told"),
    [
        ("topk", ("top_k",), "'topk': this call has only top_k; did you mean top_k?"),
        ("Top-K", ("top_k",), "'Top-K': this call has only top_k; did you mean top_k?"),
        ("threshold", ("top_k",), "'threshold': this call has only top_k"),
        ("versoin", ("full", "version"), "only full, version; did you mean version?"),
        ("format", (), "'format': this call has none"),
        ("x" * 90, (), f"{'x' * 60!r}: this call has none"),
    ],
)
def test_unknown_parameter_names_those_that_exist(
    name: str, known: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UnknownParameter) as caught:
        check_query([*known, name], *known)
    assert str(caught.value).startswith("unknown query parameter ")
    assert str(caught.value).endswith(told)


def test_number_of_parameters_is_limited() -> None:
    assert parameters_of(b"a=1&b&c=%20") == [("a", "1"), ("b", ""), ("c", " ")]
    with pytest.raises(InvalidInput, match=f"more than {MAX_PARAMETERS} query parameters"):
        parameters_of(b"a&" * (MAX_PARAMETERS + 1))
