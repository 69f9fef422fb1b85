"""Archives in a process of a handler: what handlers get, and what becomes of their answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torchlane.handlers.api import Request, Response
from torchlane.handlers.content import InvalidInput
from torchlane.torchserve.archive import Handler
from torchlane.torchserve.util import PredictionException

ECHO = """
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return None
    asked = data[0].get("do", b"").decode()
    if asked:
        exec(asked, {**globals(), **locals()})
        return context.answers
    context.rows = data
    return [str(row) for row in data]
"""


OWN = """
from ts.torch_handler.base_handler import BaseHandler

class Own(BaseHandler):
    def initialize(self, context):
        self.model = "its own"
        self.initialized = True

    def handle(self, data, context):
        return [type(self.model).__name__ for _ in data]
"""
GLOBAL = """
from ts.torch_handler.base_handler import BaseHandler

class Service(BaseHandler):
    def initialize(self, context):
        self.model = "its own"
        self.initialized = True

service = Service()

def handle(data, context):
    if not service.initialized:
        service.initialize(context)
    return data and [type(service.model).__name__ for _ in data]
"""


def set_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, handler: str, *models: str
) -> Any:
    """A handler that is set up, of an archive with this source."""
    (folder / "MAR-INF").mkdir()
    manifest = {"model": {"modelName": "it", "handler": handler}}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "own.py").write_text(source)
    module = ModuleType("archive_of_a_test")
    module.__file__ = str(folder / "archive_of_a_test.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    names = {"__module__": module.__name__, "max_batch_size": 4, "models": models}
    made: Any = type("Archive", (Handler,), names)()
    made.setup()
    return made


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of `ECHO`."""
    return set_up(tmp_path, monkeypatch, ECHO, "own.py:handle")


@pytest.mark.parametrize("source", [OWN, GLOBAL], ids=["class", "function"])
@pytest.mark.parametrize("models", [(), ("net",)])
def test_the_served_model_replaces_one_that_the_handler_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, models: tuple[str, ...]
) -> None:
    made = set_up(tmp_path, monkeypatch, source, "own", *models)
    assert made.predict(asking()).body == (b"ServedModel" if models else b"str")


def test_a_file_with_several_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "class A: ...\nclass B: ...\n"
    with pytest.raises(ValueError, match=r"own\.py must have one class or .* A, B"):
        set_up(tmp_path, monkeypatch, source, "own.py")


def test_torchserves_own_handlers_have_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = set_up(tmp_path, monkeypatch, "", "image_classifier", "net")
    assert made._handle.__self__.topk == 5


def asking(body: bytes = b"", media_type: str = "", **meta: Any) -> Request:
    return Request(body, {"media_type": media_type, **meta})


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="data"; filename="a.json"\r\n'
    b"Content-Type: application/json\r\n\r\n[1]\r\n"
    b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhi\r\n--b--\r\n'
)


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (asking(b"\xff"), {"body": bytearray(b"\xff")}),
        (asking(b"[1]", "application/json"), {"body": [1]}),
        (asking(b"[1]", "Application/JSON; charset=utf-8"), {"body": [1]}),
        (asking(b"[1", "application/json"), {"body": bytearray(b"[1")}),
        (asking("é".encode(), "text/plain"), {"body": "é"}),
        (asking(b"\xff", "text/csv"), {"body": bytearray(b"\xff")}),
        (asking(b"x", "image/png"), {"body": bytearray(b"x")}),
        (asking(FORM, "multipart/form-data; boundary=b"), {"data": [1], "note": bytearray(b"hi")}),
        (
            asking(b"data=a%20b&n=", "application/x-www-form-urlencoded"),
            {"data": bytearray(b"a b"), "n": bytearray()},
        ),
        (
            asking(b"x", "", query={"k": ["1", "2"]}),
            {"k": bytearray(b"2"), "body": bytearray(b"x")},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_parameters_are_those_of_torchserve(
    archive: Any, request_: Request, row: dict[str, Any]
) -> None:
    archive.predict(request_)
    assert archive._context.rows == [row]


def test_a_damaged_form_is_the_callers_mistake(archive: Any) -> None:
    with pytest.raises(InvalidInput):
        archive.predict(asking(b"--b", "multipart/form-data; boundary=b"))


def does(archive: Any, code: str, count: int = 1) -> list[Any]:
    others = [asking(request_id=f"id-{at}") for at in range(1, count)]
    first = asking(query={"do": [code]}, accept="text/plain", request_id="id-0")
    return list(archive.predict_batch([first, *others]))


def test_answers_have_types_and_statuses(archive: Any) -> None:
    tensor = torch.arange(3)
    archive._context.tensor = tensor
    code = "context.answers = ['é', b'x', {'a': 1}, context.tensor]\n"
    code += "context.set_response_status(201, 'made', 2)"
    text, octets, value, saved = does(archive, code, 4)
    assert (text.media_type, text.body) == ("text/plain; charset=utf-8", "é".encode())
    assert (octets.media_type, octets.body) == ("application/octet-stream", b"x")
    assert (value.status, value.media_type, json.loads(value.body)) == (
        201,
        "application/json",
        {"a": 1},
    )
    assert saved.media_type == "application/octet-stream"
    assert does(archive, "context.answers = [{'a': 1}]") == [{"a": 1}]
    (typed,) = does(archive, "context.answers = [[1]]; context.set_response_content_type(0, 'a/b')")
    assert (typed.media_type, typed.body) == ("a/b", b"[1]")


def test_a_prediction_exception_has_its_status(archive: Any) -> None:
    for status, expected in ((404, 404), (503, 503), (200, 500), (7, 500)):
        (answer,) = does(archive, f"raise PredictionException('no', {status})")
        assert isinstance(answer, Response)
        assert answer.status == expected
        assert json.loads(answer.body) == {
            "code": expected,
            "type": "InternalServerException",
            "message": "no",
        }


def test_of_several_requests_each_is_run_again(archive: Any) -> None:
    with pytest.raises(PredictionException):
        does(archive, "raise PredictionException('no', 422)", 2)


def test_the_handler_alone_chooses_the_media_type(archive: Any) -> None:
    request = asking(b"x", accept="image/png")
    archive.predict(request)
    assert request.accept == ""


@pytest.mark.parametrize("answers", ["[]", "[1, 2]", "'ab'", "None"])
def test_other_than_one_answer_for_each_is_an_error(archive: Any, answers: str) -> None:
    with pytest.raises(TypeError, match="a list with one answer for each request"):
        does(archive, f"context.answers = {answers}")


def test_the_context_knows_each_request(archive: Any) -> None:
    code = (
        "context.answers = [[context.get_request_id(at), "
        "context.get_request_header(at, 'Accept')] for at in range(2)]"
    )
    assert does(archive, code, 2) == [["id-0", "text/plain"], ["id-1", None]]
    properties = archive._context.system_properties
    assert (properties["gpu_id"], properties["batch_size"]) == (None, 4)
    assert Path(properties["model_dir"]).is_dir()
