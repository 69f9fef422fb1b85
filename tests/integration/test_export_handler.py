"""`torchlane export handler` against a running server, which then serves what it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import textwrap
import time
import venv
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from export.cli import main
from tests.e2e.forking import Piped, import_path
from tests.integration.listening import listening, until
from tests.integration.publishing import Publisher
from tests.integration.test_handlers import ASKED, SHOP, TOLD
from tests.integration.wire import request

TELLS = "    def predict(self, request): return 1"
A = "import torchlane\nclass A(torchlane.Handler):\n"


def source(folder: Path, text: str = SHOP) -> Path:
    file = folder / "shop.py"
    file.write_text(textwrap.dedent(text))
    (folder / "ask.json").write_text('{"rows": [[1, 2], [3, 4], [5, 6]]}')
    return file


def refused(
    capsys: pytest.CaptureFixture[str], file: Path, *more: str, example: str = "ask.json"
) -> str:
    arguments = [
        str(file),
        "--example",
        str(file.parent / example),
        "--out",
        str(file.parent / "r"),
    ]
    assert main(["handler", *arguments, *more], {}) in (1, 2)
    assert not (file.parent / "r").exists()
    return capsys.readouterr().err.strip().splitlines()[-1]


async def test_what_it_writes_is_served(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(2, "twice")
    publisher.publish(3, "thrice")
    file = source(tmp_path)
    async with listening(publisher.repository, handlers="on", reload_s=0.05) as server:
        arguments = ["handler", str(file), "--example", str(tmp_path / "ask.json")]
        arguments += ["--server", f"http://127.0.0.1:{server.port}"]
        arguments += ["--out", str(publisher.repository)]
        assert await asyncio.to_thread(main, arguments, {}) == 0
        folder = publisher.repository / "shop" / "1"
        assert (
            folder / "answer-0"
        ).read_bytes() == b'{"first":[2.0,4.0],"others":[[9.0,12.0],[15.0,18.0]]}'
        await until(lambda: server.service.loaded.handler("shop") is not None)
        answer = await server.ask(request("/models/shop/predict", json.dumps(ASKED).encode()))
        assert answer.json() == TOLD
        server.asgi.clear()
    assert main(["show", str(folder)], {}) == 0
    assert main(["tune", str(folder)], {}) == 2
    assert main(["keygen", str(tmp_path / "key.pem")], {}) == 0
    assert main(["sign", str(folder), "--key", str(tmp_path / "key.pem")], {}) == 0
    keys = ["--trusted-keys", str(tmp_path / "key.pub.pem")]
    assert main(["show", str(folder.with_name("2")), *keys], {}) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "must have one class that is a torchlane.Handler, got none"),
        ("import torchlane\nclass A(torchlane.Handler):\n    models = list('a')", "as a constant"),
        ("import torchlane\nclass A(torchlane.Handler):\n    models = ('a/b',)", "NAME/VERSION"),
        (SHOP, "shop:Shop calls twice, thrice: start a server that has them"),
        ("import torchlane\nclass A(torchlane.Handler):\n    pass", "A has no predict"),
        ("import torchlane\nclass A(torchlane.Handler):\n  def predict(self, r): 1/0", "division"),
        ("def", "cannot be read as Python"),
        ("x = " + "(" * 500, "cannot be read as Python"),
        (A + "    models = ('shop',)", "shop:A calls shop, which is itself; choose another --name"),
        (A + "    models = ('a/1', 'a/2')", "shop:A.models names a twice; name each model once"),
        (A + "    models = ('a/',)", "NAME/VERSION"),
        (A + "    models = ('\\ud800',)", "NAME/VERSION"),
        (A + "    models = {['a']}", "must be written as a constant"),
        (A + "    inputs = {}\n    outputs = {'y': 'int8[-1]'}\n" + TELLS, "declare both, or none"),
        (A + "    inputs = {'x': 'int8'}\n" + TELLS, "shop:A.inputs['x'] is 'int8'; write a dtype"),
        (A + "    max_batch_size = " + "-" * 50_000 + "1", "cannot be read as Python"),
        ("import torchlane\nclass Ä(torchlane.Handler): pass", "must be those of Python, in ASCII"),
    ],
)
def test_refuses_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    assert why in refused(capsys, source(tmp_path, text))


def test_refuses_unknown_media_types_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.py").write_text("")
    assert "queue.py has the name of the module queue" in refused(capsys, tmp_path / "queue.py")
    file = source(tmp_path, "import torchlane\nclass A(torchlane.Handler): pass")
    (tmp_path / "a.qqq").write_bytes(b"")
    assert "name it with --media-type" in refused(capsys, file, example="a.qqq")
    assert "is not a name for a handler" in refused(capsys, file, "--name", "a b")
    assert "--media-type must be a type" in refused(capsys, file, "--media-type", "image/ü")
    assert "--media-type must be a type" in refused(capsys, file, "--media-type", "a/" * 200)
    dashed = file.rename(tmp_path / "my-shop.py")
    assert "must be those of Python" in refused(capsys, dashed)


def test_another_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
    import sys, numpy, torchlane
    class A(torchlane.Handler):
        def predict(self, request):
            return sys.prefix
    """
    file = source(tmp_path, text.replace("numpy, ", ""))
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare/bin/python")
    out = ["--out", str(tmp_path / "r"), "--example", str(tmp_path / "ask.json")]
    assert main(["handler", str(file), *out, "--python", python], {}) == 0
    assert json.loads((tmp_path / "r/shop/1/answer-0").read_text()) == str(tmp_path / "bare")
    told = "".join(capsys.readouterr().out.split())
    assert f'[models.shop]python="{python}"' in told
    source(tmp_path, text)
    assert main(["handler", str(file), *out, "--python", python], {}) == 1
    assert "No module named 'numpy'" in capsys.readouterr().err
    assert main(["handler", str(file), *out, "--python", "/no/such"], {}) == 2
    assert "--python /no/such cannot be run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("predict", "concurrency"),
    [
        ("async def predict(self, r): return 1", 32),
        ("async def predict(self, r): yield 1", 32),
        ("def predict(self, r): return 1", 8),
        ("def predict(self, r): yield 1", 8),
        ("max_batch_size = 4\n    async def predict_batch(self, rs): return [1] * len(rs)", 8),
    ],
)
def test_coroutines_run_more_at_once_than_threads(
    tmp_path: Path, predict: str, concurrency: int
) -> None:
    file = source(tmp_path, f"import torchlane\nclass A(torchlane.Handler):\n    {predict}")
    arguments = ["handler", str(file), "--example", str(tmp_path / "ask.json")]
    assert main([*arguments, "--out", str(tmp_path / "r")], {}) == 0
    manifest = json.loads((tmp_path / "r/shop/1/manifest.json").read_text())
    assert manifest["limits"]["concurrency"] == concurrency


ORDER = """
import subprocess, time, torchlane
from pathlib import Path
from pydantic import BaseModel

class Order(BaseModel):
    price: float

class A(torchlane.Handler):
    def setup(self):
        child = subprocess.Popen(["sleep", "600"])
        Path({pids!r}).write_text(f"{{child.pid}}")
        time.sleep({seconds})

    async def predict(self, order: Order):
        return order.price
"""


def test_annotation_is_recorded_and_nothing_runs_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = source(tmp_path, ORDER.format(pids=str(tmp_path / "pids"), seconds=0))
    (tmp_path / "ask.json").write_text('{"price": 2}')
    out = ["--out", str(tmp_path / "r"), "--example", str(tmp_path / "ask.json")]
    assert main(["handler", str(file), *out], {}) == 0
    manifest = json.loads((tmp_path / "r/shop/1/manifest.json").read_text())
    assert manifest["request_schema"]["properties"]["price"]["type"] == "number"
    assert _gone(int((tmp_path / "pids").read_text()))
    assert main(["show", str(tmp_path / "r/shop/1")], {}) == 0
    assert "takes     Order" in capsys.readouterr().out


def _gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have reaped it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_interrupt_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    pids, scratch = tmp_path / "pids", tmp_path / "scratch"
    scratch.mkdir()
    file = source(tmp_path, ORDER.format(pids=str(pids), seconds=600))
    out = ["--out", str(tmp_path / "r"), "--example", str(tmp_path / "ask.json")]
    environment = os.environ | import_path() | {"TMPDIR": str(scratch)}
    with Piped("-m", "export", "handler", file, *out, environment=environment) as export:
        _wait_until(lambda: pids.exists() and pids.read_text())
        handler = psutil.Process(int(pids.read_text())).parent()
        assert handler is not None
        export.send_signal(signal.SIGINT)
        told = export.stderr.read()
        assert export.wait(30) == 130
    assert b"interrupted; nothing was written" in told
    assert _gone(handler.pid)
    assert _gone(int(pids.read_text()))
    assert [*scratch.iterdir()] == []
    assert not (tmp_path / "r").exists()


def _wait_until(condition: Callable[[], object]) -> None:
    late = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.02)
