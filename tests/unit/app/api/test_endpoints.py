"""Which paths are predictions, and what they ask for."""

from __future__ import annotations

import pytest

from app.api.endpoints import MAX_PATHS
from app.api.routes import DIALECTS, dialects_with


@pytest.mark.parametrize(
    ("url", "route", "many", "name", "version"),
    [
        (b"/predict", "/predict", False, None, None),
        (b"/models/x/predict?top_k=05", "/models/{name}/predict", False, "x", None),
        (b"/batch-predict", "/batch-predict", True, None, None),
        (b"/", "/", True, None, None),
        (b"/v1/models/x:predict", "/v1/models/{name}:predict", True, "x", None),
        (b"/models/a-b_9/predict", "/models/{name}/predict", False, "a-b_9", None),
        (
            b"/models/x/versions/07/batch-predict",
            "/models/{name}/versions/{version}/batch-predict",
            True,
            "x",
            "07",
        ),
    ],
)
def test_prediction_paths_are_recognized(
    url: bytes, route: str, many: bool, name: str | None, version: str | None
) -> None:
    found = dialects_with().endpoints.at(url)
    assert found is not None
    assert (found.route, found.many, found.name, found.version) == (route, many, name, version)
    assert found.top_k == (5 if b"?" in url else None)


@pytest.mark.parametrize(
    "url",
    [
        *(b"/x", b"/predict/", b"/predict?a=1", b"//predict", b"/Predict", b"/predict\xff", b"*"),
        *(b"/models//predict", b"/models/a%20b/predict", b"/models/a/versions/x/predict"),
        *(
            b"/predict?",
            b"/predict?top_k=",
            b"/predict?top_k=-1",
            b"/predict?top_k=0",
            b"/predict?top_k=1&a=1",
            b"/v2/models/m/infer?top_k=1",
            b"/predictions/m?top_k=1",
        ),
        *(b"/v1/models/a:explain", b"/v1/models/a:predict:predict", b"/v1/models/:predict"),
        *(b"/models/a/versions/1234567890/predict", b"http://host/predict", b"/predict\n"),
    ],
)
def test_other_paths_are_not_recognized(url: bytes) -> None:
    assert dialects_with().endpoints.at(url) is None


def test_number_of_remembered_paths_is_limited() -> None:
    endpoints = dialects_with().endpoints
    first = [endpoints.at(b"/models/m%d/predict" % n) for n in range(2 * MAX_PATHS)]
    again = [endpoints.at(b"/models/m%d/predict" % n) for n in range(2 * MAX_PATHS)]
    assert again == first
    kept = sum(one is other for one, other in zip(first, again, strict=True))
    assert kept == MAX_PATHS


def test_a_protocol_owns_its_paths() -> None:
    """Otherwise their errors would have the form of another protocol."""
    dialects = dialects_with()
    for dialect, endpoints in dialects.served:
        routes = [each.route for each in endpoints]
        assert all(dialects.of_route(route) is dialect for route in routes), routes
        paths = (*dialect.probes, *dialect.admin_paths)
        assert all(dialects.of(path) is dialect for path in paths), paths
    assert dialects.of("/v2") is dialects.of("/v2/nowhere") is not DIALECTS[0]
    assert dialects.of("") is dialects.of("/v22/models") is DIALECTS[0]
    assert dialects.needs_admin("/v2/repository/models/m/load")
    assert not dialects.needs_admin("/administration")
