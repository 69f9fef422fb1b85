"""The handlers of docs/handlers.md, exported and served as the document says."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from pathlib import Path

import pytest
from PIL import Image

from export.cli import main
from tests.docs.blocks import blocks
from tests.handlers import JSON, Example, write_handler
from tests.integration.harness import serving
from tests.integration.listening import listening

FAKE = """
import torchlane

class Fake(torchlane.Handler):
    async def predict(self, request):
        picture = request.image()
        return %s
"""


def written(folder: Path) -> dict[str, Path]:
    """The files of the document's Python blocks, by name."""
    files = {}
    for language, text in blocks("docs/handlers.md"):
        if language == "python":
            name = text.splitlines()[0].removeprefix("# ")
            files[name] = folder / name
            files[name].write_text(text)
    return files


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 10)).save(file, "PNG")
    return file.getvalue()


async def test_a_pipeline_of_sklearn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    shell = [text for language, text in blocks("docs/handlers.md") if language == "sh"]
    echo, *commands = shell[0].splitlines()
    assert echo.endswith(" > flower.json")
    flower = shlex.split(echo)[1]
    (tmp_path / "flower.json").write_text(flower)
    for command in commands:
        _, name, *arguments = shlex.split(command)
        arguments = arguments if name == "export" else [name, *arguments]
        assert await asyncio.to_thread(main, arguments, {}) == 0
    told = [json.loads(text) for language, text in blocks("docs/handlers.md") if language == "json"]
    calls = [shlex.split(text) for text in shell if text.startswith("curl")]
    async with serving(Path("artifacts"), handlers="on") as api:
        for call, answer in zip(calls, told, strict=True):
            body = flower if call[-1] == "@flower.json" else call[-1]
            found = await api.client.post(call[2].removeprefix(":8000"), content=body)
            assert found.json() == answer


async def test_a_detector_then_a_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, repository = written(tmp_path), tmp_path / "artifacts"
    for name, answer in (
        ("detector", {"boxes": [[0, 0, 4, 4], [2, 2, 8, 6]]}),
        ("classifier", {"label": "kind"}),
    ):
        example = Example(picture(), json.dumps(answer).encode(), "image/png", JSON)
        write_handler(repository, name, 1, FAKE % answer, [example], entry="fake:Fake")
    (tmp_path / "street.png").write_bytes(picture())
    async with listening(repository, handlers="on", reload_s=0.05) as server:
        arguments = ["handler", str(files["shop.py"]), "--example", str(tmp_path / "street.png")]
        arguments += ["--server", f"http://127.0.0.1:{server.port}", "--out", str(repository)]
        done = await asyncio.to_thread(main, arguments, {})
        server.asgi.clear()
    assert done == 0
    answer = json.loads((repository / "shop/1/answer-0").read_text())
    assert answer["objects"][1] == {"box": [2, 2, 8, 6], "kind": "kind"}


async def test_an_answer_that_is_a_picture(tmp_path: Path) -> None:
    files = written(tmp_path)
    (tmp_path / "a.png").write_bytes(picture())
    arguments = ["handler", str(files["invert.py"]), "--example", str(tmp_path / "a.png")]
    assert await asyncio.to_thread(main, [*arguments, "--out", str(tmp_path / "r")], {}) == 0
    async with serving(tmp_path / "r", handlers="on") as api:
        files_sent = {"file": ("street.png", picture(), "image/png")}
        answer = await api.client.post("/models/invert/predict", files=files_sent)
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).getpixel((0, 0)) == (0, 255, 245)
