"""Every kind of input, with the model's answers for it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from app.bulk import blocks
from tests.artifacts import small_batch
from tests.kinds import SIDE
from tests.unit.app.bulk.conftest import Bulk, digest, errors, manifest, rows

TWO = [[1.0, 2.0], [3.5, -4.0], [5.0, 6.0]]
DOUBLED = [[2.0, 4.0], [7.0, -8.0], [10.0, 12.0]]


def png(light: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), light).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_parquet_numbers_keep_their_ids(bulk: Bulk, form: str) -> None:
    table = {"input": TWO, "id": ["a", "b", "c"], "more": [1, 2, 3]}
    pq.write_table(pa.table(table), "in.parquet")
    assert bulk("double", "in.parquet", "--format", form) == 0
    assert rows() == [
        {"id": name, "row": row, "y": DOUBLED[row], "error": None} for row, name in enumerate("abc")
    ]
    told = manifest()
    assert (told["status"], told["rows"], told["errors"]) == ("finished", 3, 0)
    assert told["shards"][0]["name"] == f"part-00000.{form}"


def test_standard_input_is_a_stream_of_json_lines(
    bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"input": each}) + "\n\n" for each in TWO)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert bulk("double", "-") == 0
    assert [row["y"] for row in rows()] == DOUBLED
    assert [row["id"] for row in rows()] == ["0", "1", "2"]


def test_npy_and_raw_byte_columns_hold_arrays(bulk: Bulk) -> None:
    array = np.array(TWO, np.float32)
    np.save("in.npy", array.astype(np.float64))
    assert bulk("double", "in.npy", out="npy") == 0
    assert [(row["id"], row["y"]) for row in rows("npy")] == [*enumerate(DOUBLED)]
    octets = pa.array([row.tobytes() for row in array], pa.binary(8))
    pq.write_table(pa.table({"x": octets}), "in.parquet")
    assert bulk("double", "in.parquet", out="bytes") == 0
    assert rows("bytes") == rows("npy")


def test_picture_folders_are_decoded_by_processes(bulk: Bulk) -> None:
    Path("pictures/deep").mkdir(parents=True)
    for number in range(5):
        Path(f"pictures/{number}.png").write_bytes(png(50 * number))
    Path("pictures/deep/bad.jpg").write_bytes(b"no picture")
    Path("pictures/notes.txt").write_text("no picture either")
    assert bulk("pictures", "pictures", "--workers", 2) == 0
    found = rows()
    assert [row["id"] for row in found] == [*(f"{n}.png" for n in range(5)), "deep/bad.jpg"]
    assert found[4]["label"] == "light"
    assert found[4]["score"] == pytest.approx(200 / 255)
    assert found[5]["label"] is None
    assert "'picture'" in found[5]["error"]
    assert errors() == [{"id": "deep/bad.jpg", "row": 5, "reason": found[5]["error"]}]


def test_folders_may_hold_links_and_unusual_names(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in/sub").mkdir(parents=True)
    for name in (b"in/0.png", b"in/\xff.png", b"in/sub/1.png", b"in/.2.png"):
        Path(os.fsdecode(name)).write_bytes(png(255))
    Path("in/gone.png").symlink_to("nowhere")
    Path("in/loop.png").symlink_to("loop.png")
    os.mkfifo("in/pipe.png")
    Path("in/zero.png").symlink_to("/dev/zero")
    Path("elsewhere").mkdir()
    Path("elsewhere/3.png").write_bytes(png(0))
    Path("in/linked").symlink_to("../elsewhere")
    assert bulk("pictures", "in", "--workers", 0) == 0
    found = {row["id"]: row["error"] or row["label"] for row in rows()}
    assert found == {
        "0.png": "light",
        "gone.png": "in/gone.png cannot be read: No such file or directory",
        "linked/3.png": "dark",
        "loop.png": "in/loop.png cannot be read: Too many levels of symbolic links",
        "pipe.png": "in/pipe.png is not a regular file",
        "sub/1.png": "light",
        "zero.png": "in/zero.png is not a regular file",
        "\\xff.png": "light",
    }
    Path("elsewhere/back").symlink_to("../in")
    assert bulk("pictures", "in", out="circle") == 2
    Path("elsewhere/back").unlink()
    Path("in/circle").symlink_to("circle")
    assert bulk("pictures", "in", out="circle") == 2
    told = capsys.readouterr().err
    assert "in/linked/back cannot be read: it is a link to a folder that contains it" in told
    assert "in/circle cannot be read: Too many levels of symbolic links" in told


def test_row_ids_allow_a_join(bulk: Bulk) -> None:
    for folder in "pq":
        Path(folder).mkdir()
        Path(folder, "1.png").write_bytes(png(255))
    assert bulk("pictures", "p", "q", "--workers", 0, out="folders") == 0
    assert [row["id"] for row in rows("folders")] == ["p/1.png", "q/1.png"]
    ids = pa.array(["1", None, "1"]).dictionary_encode()
    pq.write_table(pa.table({"input": TWO, "id": ids}), "in.parquet")
    assert bulk("double", "in.parquet", out="nulls") == 0
    assert [(row["id"], row["row"]) for row in rows("nulls")] == [("1", 0), ("1", 1), ("1", 2)]
    lines = [{"input": TWO[0], "id": each} for each in ("a", 7, None, True, 1.5, [1])]
    Path("in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert bulk("double", "in.jsonl", "--format", "jsonl", out="lines") == 0
    assert [(row["id"], row["row"]) for row in rows("lines")] == [
        *zip(["a", "7", "2", "3", "4", "5"], range(6), strict=True)
    ]
    assert [row["error"] for row in rows("lines")] == [None] * 3 + [
        "the id must be a whole number or a text"
    ] * 3


def test_picture_columns_hold_bytes_paths_or_base64(bulk: Bulk) -> None:
    Path("dark.png").write_bytes(png(10))
    Path("dark").write_bytes(png(10))
    images = [{"bytes": png(255), "path": None}, {"bytes": None, "path": "dark"}, None]
    pq.write_table(pa.table({"input": images}), "in.parquet")
    assert bulk("pictures", "in.parquet", "--workers", 0, out="structs") == 0
    assert [row["label"] for row in rows("structs")] == ["light", "dark", None]
    assert rows("structs")[2]["error"] == "the row has no input"
    numbers = json.dumps([0.75] * SIDE**2)
    Path("in.csv").write_text(f'input\ndark.png\nnone.png\n/9j/\n"{numbers}"\n')
    assert bulk("pictures", "in.csv", "--workers", 0, out="names") == 0
    assert [row["label"] for row in rows("names")] == ["dark", None, None, "light"]
    assert "none.png cannot be read: No such file or directory" in rows("names")[1]["error"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_blocks_of_large_rows_are_small(
    bulk: Bulk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pictures = [base64.b64encode(png(light) + bytes(2000)).decode() for light in range(0, 250, 50)]
    table = pa.table({"input": pictures})
    pq.write_table(table, "in.parquet", use_dictionary=False, write_statistics=False)
    pa_csv.write_csv(table, "in.csv")
    Path("in.jsonl").write_text("".join(json.dumps({"input": each}) + "\n" for each in pictures))
    assert bulk("pictures", f"in.{kind}", "--workers", 0, out="whole") == 0
    assert manifest("whole")["block_rows"] > 100
    monkeypatch.setattr(blocks, "RAW_BYTES", 8000)
    assert bulk("pictures", f"in.{kind}", "--workers", 0) == 0
    assert manifest()["block_rows"] == 2
    assert digest() == digest("whole")


@pytest.mark.parametrize("workers", [0, 1])
def test_texts_batched_by_length_keep_their_order(bulk: Bulk, workers: int) -> None:
    texts = ["cat", "a dog in london " * 3, "dog", "a cat", "cat"]
    Path("in.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    assert bulk("topics", "in.jsonl", "--batch", 2, "--top-k", 2, "--workers", workers) == 0
    found = rows()
    assert len(found) == 5
    assert found[0] | {"id": "4", "row": 4} == found[4]
    assert [len(row["scores"]) for row in found] == [2] * 5
    assert found[0]["label"] == found[0]["labels"][0]
    assert found[0]["cut"] == 0
    assert manifest()["last_part"]["equal"] == 1


def test_each_input_has_its_own_column(bulk: Bulk) -> None:
    pq.write_table(pa.table({"text": ["cat"], "text_pair": ["a dog"]}), "pairs.parquet")
    assert bulk("rank", "pairs.parquet", out="pairs") == 0
    assert rows("pairs")[0]["error"] is None
    batch = small_batch(3)
    columns = {name: [row.tolist() for row in array] for name, array in batch.items()}
    pq.write_table(pa.table(columns), "inputs.parquet")
    assert bulk("small", "inputs.parquet", out="inputs") == 0
    assert [len(row["y"]) for row in rows("inputs")] == [3, 3, 3]


def test_equal_rows_are_computed_once(bulk: Bulk) -> None:
    pq.write_table(pa.table({"input": TWO * 50}), "in.parquet")
    assert bulk("double", "in.parquet") == 0
    assert [row["y"] for row in rows()] == DOUBLED * 50
    assert (manifest()["last_part"]["equal"], manifest()["shards"][0]["computed"]) == (147, 3)


def test_output_files_are_not_read_as_input(bulk: Bulk) -> None:
    pq.write_table(pa.table({"input": TWO}), "in.parquet")
    for argument in (".", "**/*.parquet"):
        assert bulk("double", argument, "--max-errors", 0) == 0
        assert bulk("double", argument, "--max-errors", 0, "--resume") == 0
        assert [row["y"] for row in rows()] == DOUBLED
        shutil.rmtree("out")
