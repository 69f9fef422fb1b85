"""The command line of `torchlane serve`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.__main__ import main
from app.processes.worker import Worker
from app.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[3]


class Seen(ValueError):
    """Raised instead of serving; holds what would have been served."""


def create(settings: Settings, worker: Worker | None) -> FastAPI:
    assert worker is None
    raise Seen(f"{settings.workers} worker")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without a .env file, no TORCHLANE_ variable, and the test's own logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.__main__.configure_logs", lambda level, form, screen: None)
    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)


def test_missing_extra_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("models.system.extras.find_spec", lambda name: None)
    assert main(create, ["--grpc-port", "9000"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("torchlane: --grpc-port 9000 needs packages that are not installed")
    assert told.endswith("pip install 'torchlane[grpc]'\n")
    assert main(create, []) == 2
    assert "worker" in capsys.readouterr().err


def test_shared_cache_needs_its_extra_and_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(create, ["--cache-url", "redis://:hunter2@cache"])
    assert "`ps` would show its value: set TORCHLANE_CACHE_URL" in capsys.readouterr().err
    monkeypatch.setenv("TORCHLANE_CACHE_URL", "redis://:hunter2@cache")
    monkeypatch.setattr("models.system.extras.find_spec", lambda name: None)
    assert main(create, []) == 2
    told = capsys.readouterr().err
    assert told.startswith("torchlane: TORCHLANE_CACHE_URL needs packages that are not installed")
    assert told.endswith("(redis, hiredis): pip install 'torchlane[redis]'\n")
    assert "hunter2" not in told


def test_a_store_needs_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("models.system.extras.find_spec", lambda name: None)
    assert main(create, ["--model-dir", "s3://bucket/models"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("torchlane: --model-dir s3://bucket/models needs packages that are not")
    assert told.endswith("(obstore): pip install 'torchlane[remote]'\n")


def test_wrong_cache_option_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the layout is measured first")

    monkeypatch.setattr("app.__main__._workers", never)
    monkeypatch.setenv("TORCHLANE_CACHE_URL", "redis://:hunter2@cache?socket_time_out=1")
    assert main(create, []) == 2
    told = capsys.readouterr().err
    assert told == (
        "torchlane: TORCHLANE_CACHE_URL: redis-py does not know the option 'socket_time_out'\n"
    )


def test_extras_are_not_imported_by_default() -> None:
    code = "import sys, app.main; sys.exit(bool({'grpc', 'google', 'redis'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT)
    assert done.returncode == 0


def test_each_public_setting_has_a_documented_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(create, ["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        assert field.description, name
        assert (f"{flag} " in words) is field.repr, name
        if field.repr:
            assert "".join(field.description.split()) in words.replace(" ", ""), name
    assert "(default: 256MiB)" in words
    assert "--worker " not in words


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workers", "0"], "--workers '0': Input should be greater than or equal to 1"),
        (["--port=many"], "--port 'many': Input should be a valid integer"),
        (["--devices", "gpu"], "--devices 'gpu': 'gpu' is not a device; a GPU has a number"),
        (["--port", "x", "--hang-s", "y"], "--hang-s 'y': Input should be a valid number"),
    ],
)
def test_wrong_value_error_names_the_flag(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(create, arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchlane: --")
    assert told in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--prot", "1"], "--prot is not a flag; did you mean --port?"),
        (["--max_batch_size=1"], "--max_batch_size is not a flag; did you mean --max-batch-size?"),
        (["--nope"], "--nope is not a flag; --help lists all flags"),
        (["--modeldir", "x"], "--modeldir is not a flag; did you mean --model-dir?"),
        (["sreve"], "sreve is not a flag; --help lists all flags"),
        (["--trusted-keys", ""], "--trusted-keys is empty: give it a value or leave it out"),
        (
            ["--api-keys", "tl_x"],
            "--api-keys does not exist, because `ps` would show its value: set TORC",
        ),
    ],
)
def test_wrong_flag_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(create, arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"torchlane: {told}")
    assert error.count("\n") == 1
    assert "tl_x" not in error


def test_several_workers_need_memory_or_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setenv("TORCHLANE_PORT", "0")
    monkeypatch.setattr(os, "memfd_create", none, raising=False)
    monkeypatch.setattr("tempfile.TemporaryFile", none)
    assert main(create, ["--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "torchlane: 2 workers need memory that they share, or files in TMPDIR: " in error
    assert "No usable temporary directory found; --workers 1 needs neither" in error


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("API_KEYS", "tl_a-key-in-the-wrong-place", "TORCHLANE_API_KEYS: entry 1: the name"),
        ("API_KEYS_FILE", "keys", "TORCHLANE_API_KEYS_FILE=keys: line 2: the scopes"),
        ("RATE_LIMIT", "many", "TORCHLANE_RATE_LIMIT='many': a rate limit is a number of items"),
    ],
)
def test_invalid_keys_refuse_the_start_unquoted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    told: str,
) -> None:
    Path("keys").write_text("# who\nmobile predict tl_a-key-in-the-wrong-place\n")
    monkeypatch.setenv(PREFIX + name, value)
    assert main(arguments=[]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"torchlane: {told}")
    assert "tl_" not in error


def test_what_a_platform_says_is_above_variables_and_below_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(settings: Settings, _: Worker | None) -> FastAPI:
        raise Seen(f"{settings.host} {settings.port} {settings.predict_route}")

    monkeypatch.setenv("TORCHLANE_HOST", "127.0.0.1")
    monkeypatch.setenv("TORCHLANE_PORT", "8000")
    monkeypatch.setenv("TORCHLANE_WORKERS", "1")
    monkeypatch.setenv("AIP_HTTP_PORT", "8081")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/vertex")
    for arguments, port in (([], 8081), (["--port", "8082"], 8082)):
        assert main(tell, arguments) == 2
        assert capsys.readouterr().err == f"torchlane: 0.0.0.0 {port} /vertex\n"
    for name, value, message in (
        ("AIP_HTTP_PORT", "x", "AIP_HTTP_PORT='x': "),
        ("AIP_STORAGE_URI", "ftp://host", "AIP_STORAGE_URI='ftp://host': ftp:// is not supported"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert main(tell, []) == 2
        assert capsys.readouterr().err.startswith(f"torchlane: {message}")

    def tell_place(settings: Settings, _: Worker | None) -> FastAPI:
        raise Seen(str(settings.model_dir))

    monkeypatch.setenv("AIP_STORAGE_URI", "gs://bucket/models")
    for arguments, place in (([], "gs://bucket/models"), (["--model-dir", "s3://b"], "s3://b")):
        assert main(tell_place, arguments) == 2
        assert capsys.readouterr().err == f"torchlane: {place}\n"


def test_ports_must_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(create, ["--grpc-port", "9000", "--port", "9000"]) == 2
    assert "--grpc-port 9000 is TORCHLANE_PORT too" in capsys.readouterr().err
