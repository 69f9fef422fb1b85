"""Bulk scoring by a handler: real processes of handler, server and run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.artifacts import write_artifact
from tests.e2e.forking import Piped
from tests.e2e.test_bulk import ROOT, has_lines, wait_for
from tests.handlers import asks, write_handler
from tests.unit.app.bulk.conftest import digest, rows

SOURCE = """
import asyncio
import os
import torchlane

class Shop(torchlane.Handler):
    models = ("double",)

    async def predict(self, request):
        if request.body[:4] == b"RIFF":
            return torchlane.Response(request.body[:4], "audio/wav")
        row = request.json()
        if row.get("dies"):
            os._exit(3)
        if row.get("raises"):
            raise ValueError("a row of no use")
        if row.get("sold_out"):
            return torchlane.Response("sold out", "text/plain", 404)
        await asyncio.sleep(row.get("waits", 0))
        answer = await self.call("double", [row["x"], 0])
        return {"twice": answer["outputs"]["y"][0], "name": row.get("name")}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    write_artifact(models, "double")
    write_handler(models, "broken", 1, "raise ValueError('no such file')", [asks(1, 1)])
    example = asks({"x": 1}, {"twice": 2, "name": None})
    write_handler(models, "shop", 1, SOURCE, [example], ("double",), concurrency=4)
    return tmp_path


def begun(folder: Path, name: str, *arguments: str, mode: str = "on") -> Piped:
    command = ["-m", "app.bulk", name, *arguments, "--devices", "cpu", "--model-dir", "models"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
    environment |= {"PYTHONPATH": str(ROOT), "TORCHLANE_HANDLERS": mode}
    return Piped(*command, environment=environment, folder=folder)


def scored(folder: Path, name: str, *arguments: str, mode: str = "on") -> tuple[int, str]:
    """The exit code, and what was told."""
    with begun(folder, name, *arguments, mode=mode) as process:
        told = process.stderr.read().decode()
        return process.wait(120), told


def write_lines(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def servers_of(folder: Path) -> list[Path]:
    """The processes, except this one, whose files are the handler's of this folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = each.read_bytes()
        except OSError:  # of another user, or ended
            continue
        if f"TORCHLANE_MODEL_DIR={folder}/models".encode() in variables:
            found.append(each)
    return found


def test_each_row_has_an_outcome_of_its_own(folder: Path) -> None:
    lines: list[dict[str, Any]] = [{"x": n, "name": "007", "id": f"r{n}"} for n in range(40)]
    lines[3] |= {"dies": True}
    lines[5] |= {"raises": True}
    lines[6] |= {"sold_out": True}
    write_lines(folder / "in.jsonl", lines)
    code, told = scored(folder, "shop", "in.jsonl", "--out", "out", "--limit", "30")
    assert code == 0, told
    assert "3 of 30 rows are bad" in told
    found = {row["id"]: row for row in rows(folder / "out")}
    assert len(found) == 30
    errors = {name: row["error"] for name, row in found.items() if row["error"]}
    assert errors == {
        "r3": "the handler's process ended: it exited with code 3",
        "r5": errors["r5"],
        "r6": "the handler answered 404: sold out",
    }
    assert "ValueError: a row of no use" in errors["r5"]
    assert json.loads(found["r4"]["answer"]) == {"twice": 8, "name": "007"}
    assert found["r4"]["media_type"] == "application/json"
    wait_for(lambda: not servers_of(folder), 20)


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_resumes(folder: Path) -> None:
    write_lines(folder / "in.jsonl", [{"x": n, "waits": 0.02} for n in range(80)])
    options = ("in.jsonl", "--out", "out", "--rows-per-shard", "10")
    for how, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        resume = ["--resume"] * ((folder / "out").exists())
        done = 2 if how == signal.SIGKILL else 4
        with begun(folder, "shop", *options, *resume) as process:
            wait_for(partial(has_lines, folder / "out/progress.jsonl", done))
            process.send_signal(how)
            assert process.wait(60) == code, process.stderr.read()
        wait_for(lambda: not servers_of(folder), 20)
    code, told = scored(folder, "shop", *options, "--resume")
    assert code == 0, told
    answers = [json.loads(row["answer"])["twice"] for row in rows(folder / "out")]
    assert answers == [2 * n for n in range(80)]
    assert sorted(digest(folder / "out")) == [f"part-0000{n}.parquet" for n in range(8)]


@pytest.mark.soak
def test_tables_and_files_become_bodies(folder: Path) -> None:
    (folder / "in.csv").write_text('x,name,id,kind\n3,"a ""b""",7,new\n4,,8,old\n')
    code, told = scored(folder, "shop", "in.csv", "--out", "cells", "--keep", "kind")
    assert code == 0, told
    assert [
        (row["id"], row["kind"], json.loads(row["answer"])) for row in rows(folder / "cells")
    ] == [
        ("7", "new", {"twice": 6, "name": 'a "b"'}),
        ("8", "old", {"twice": 8, "name": ""}),
    ]
    table = pa.table({"sound": [b"RIFFx", b"{}"], "id": [5, 6]})
    pq.write_table(table, folder / "in.parquet")
    code, told = scored(folder, "shop", "in.parquet", "--out", "bytes", "--input-column", "sound")
    first, second = rows(folder / "bytes")
    assert (first["id"], first["media_type"], first["body"]) == (5, "audio/wav", b"RIFF"), told
    assert (first["answer"], second["body"]) == (None, None)
    assert "KeyError: 'x'" in second["error"]


@pytest.mark.parametrize(
    ("name", "arguments", "mode", "code", "told"),
    [
        ("shop", (), "off", 2, "a handler, whose code runs only with TORCHLANE_HANDLERS=on"),
        pytest.param(
            *("shop", ("--top-k", "3"), "on", 2, "--top-k is for models; shop/1 is a handler"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("broken", (), "on", 1, "the handler broken: ValueError: no such file"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_cannot_run_is_refused(
    folder: Path, name: str, arguments: tuple[str, ...], mode: str, code: int, told: str
) -> None:
    write_lines(folder / "in.jsonl", [{"x": 1}])
    got, said = scored(folder, name, "in.jsonl", "--out", "out", *arguments, mode=mode)
    assert told in said
    assert got == code
