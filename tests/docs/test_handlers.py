"""The handlers of docs/handlers.md, exported and served as the document says."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from export.cli import main
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.docs.blocks import blocks
from tests.handlers import JSON, Example, write_handler
from tests.integration.harness import serving
from tests.integration.listening import listening, until
from tests.integration.wire import request
from tests.unit.export.torchscripts import archived, scripted

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


@pytest.mark.soak
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
    calls = [shlex.split(text) for text in shell if text.startswith("curl -s ")]
    async with serving(Path("artifacts"), handlers="on") as api:
        for call, answer in zip(calls, told, strict=True):
            body = flower if call[-1] == "@flower.json" else call[-1]
            (headers,) = (dict([each.split(": ")]) for each in call if each.startswith("Content-"))
            path = call[2].removeprefix(":8000")
            found = await api.client.post(path, content=body, headers=headers)
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


@pytest.mark.parametrize(
    ("name", "model", "answer", "example", "expected"),
    [
        ("mask", "segmenter", {"mask": [[0.1, 0.9], [0.7, 0.2]]}, "a.png", [[0, 255], [255, 0]]),
        ("speech", "words", {"label": "yes"}, "a.wav", {"word": "yes"}),
    ],
)
async def test_calls_a_model(
    tmp_path: Path, name: str, model: str, answer: object, example: str, expected: object
) -> None:
    files, repository = written(tmp_path), tmp_path / "artifacts"
    (tmp_path / "a.png").write_bytes(picture())
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(3200))
    fake = FAKE.replace("request.image()", "request.body") % answer
    golden = Example(b"1", json.dumps(answer).encode())
    write_handler(repository, model, 1, fake, [golden], entry="fake:Fake")
    async with listening(repository, handlers="on") as server:
        arguments = ["handler", str(files[f"{name}.py"]), "--example", str(tmp_path / example)]
        arguments += ["--server", f"http://127.0.0.1:{server.port}", "--out", str(repository)]
        assert await asyncio.to_thread(main, arguments, {}) == 0
        server.asgi.clear()
    result = (repository / name / "1/answer-0").read_bytes()
    if isinstance(expected, dict):
        assert json.loads(result) == expected
    else:
        assert np.asarray(Image.open(io.BytesIO(result))).tolist() == expected


async def test_tensors_by_the_open_inference_protocol(tmp_path: Path) -> None:
    files, repository = written(tmp_path), tmp_path / "artifacts"
    document = await asyncio.to_thread(Path("docs/handlers.md").read_text)
    (tmp_path / "points.json").write_text('{"points": [[3, 4], [0, 1]]}')
    arguments = ["handler", str(files["distance.py"]), "--out", str(repository)]
    assert main([*arguments, "--example", str(tmp_path / "points.json")], {}) == 0
    (command,) = (line for line in document.splitlines() if "distance/infer" in line)
    _, _, url, _, body = shlex.split(command)
    async with serving(repository, handlers="on") as api:
        answer = await api.client.post(url.removeprefix(":8000"), content=body)
        (output,) = answer.json()["outputs"]
        assert output == {"name": "distance", "datatype": "FP32", "shape": [1], "data": [5]}


async def test_texts_by_the_open_inference_protocol(tmp_path: Path) -> None:
    files, repository = written(tmp_path), tmp_path / "artifacts"
    (tmp_path / "text.json").write_text('{"text": ["a", "é"]}')
    arguments = ["handler", str(files["loud.py"]), "--out", str(repository)]
    assert main([*arguments, "--example", str(tmp_path / "text.json")], {}) == 0
    document = await asyncio.to_thread(Path("docs/handlers.md").read_text)
    (command,) = (line for line in document.splitlines() if "loud/infer" in line)
    _, _, url, _, body = shlex.split(command)
    async with serving(repository, handlers="on") as api:
        answer = await api.client.post(url.removeprefix(":8000"), content=body)
        (output,) = answer.json()["outputs"]
        assert output == {"name": "loud", "datatype": "BYTES", "shape": [1], "data": ["HEY"]}


class Net(nn.Module):
    """ids [n, 4] -> [n, 2]: how many of them are 1, and how many are 2."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([(ids == each).sum(1).float() for each in (1, 2)], dim=1)


@pytest.mark.soak
async def test_an_archive_of_torchserve_before_and_after(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "text.txt").write_text("good good bad so")
    files = {
        "mood.pt": scripted(Net()),
        "words.json": b'{"good": 1, "bad": 2}',
        "index_to_name.json": b'{"0": "happy", "1": "sad"}',
    }
    mar = archived(tmp_path, files, "--handler", "mood.py").rename(tmp_path / "mood.mar")
    repository = tmp_path / "artifacts"
    arguments = ["handler", str(mar), "--name", "mood", "--example", str(tmp_path / "text.txt")]
    arguments += ["--out", str(repository)]
    assert await asyncio.to_thread(main, arguments, {}) == 0
    ids = np.array([1, 1, 2, 0], np.int64)
    write_artifact(
        repository,
        "mood-net",
        module=Net(),
        inputs=(TensorSpec(name="ids", dtype="int64", shape=(-1, 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, 2)),),
        golden=[{"ids": ids}],
    )
    async with listening(repository, handlers="on", reload_s=0.05) as server:
        data = request("/predictions/mood", b"bad so so good", content_type="text/plain")
        before = (await server.ask(data)).json()
        arguments += ["--model", "mood-net", "--server", f"http://127.0.0.1:{server.port}"]
        assert await asyncio.to_thread(main, arguments, {}) == 0
        await until(lambda: server.service.loaded.handler("mood", 2) is not None)
        after = (await server.ask(data)).json()
        server.asgi.clear()
    assert after == before == pytest.approx({"happy": 0.5, "sad": 0.5})
    assert (repository / "mood/1/answer-0").read_bytes() == (
        repository / "mood/2/answer-0"
    ).read_bytes()


async def test_a_stream(tmp_path: Path) -> None:
    files = written(tmp_path)
    call = next(text for _, text in blocks("docs/handlers.md") if text.startswith("curl -sN"))
    text = next(text for language, text in blocks("docs/handlers.md") if language == "text")
    *_, body = shlex.split(call)
    (tmp_path / "ask.json").write_text(body)
    arguments = ["handler", str(files["rhyme.py"]), "--example", str(tmp_path / "ask.json")]
    assert await asyncio.to_thread(main, [*arguments, "--out", str(tmp_path / "r")], {}) == 0
    async with serving(tmp_path / "r", handlers="on") as api:
        answer = await api.client.post("/models/rhyme/predict", content=body)
        assert answer.text.strip() == text.strip()
