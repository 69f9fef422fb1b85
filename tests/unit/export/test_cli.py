"""The command line: what it makes, its exit codes, and one line for whatever can go wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from export.cli import main
from models.manifest import Manifest
from tests.unit.export.definitions import CATALOG


def run(*arguments: object) -> tuple[int, str]:
    """The exit code and what was printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    return main([str(each) for each in arguments], CATALOG, console), printed.getvalue()


def files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def manifest_of(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())


def complete(folder: str, method: str = "script") -> list[str]:
    return [f"{folder}/manifest.json", f"{folder}/manifest.sha256", f"{folder}/{method}.pt"]


class TestDone:
    def test_an_artifact_and_a_report(self, tmp_path: Path) -> None:
        code, printed = run("tiny", "--out", tmp_path)
        assert code == 0
        assert files(tmp_path) == complete("tiny/1")
        for fact in ("tiny version 1", "script.pt", "parity with eager", str(tmp_path / "tiny/1")):
            assert fact in printed
        assert "verifying" in printed

    def test_each_export_is_the_next_version(self, tmp_path: Path) -> None:
        for _ in range(2):
            assert run("tiny", "--out", tmp_path)[0] == 0
        assert files(tmp_path) == complete("tiny/1") + complete("tiny/2")
        assert [manifest_of(tmp_path / f"tiny/{n}").version for n in (1, 2)] == [1, 2]

    def test_a_wanted_version_and_the_one_after_it(self, tmp_path: Path) -> None:
        assert run("tiny", "--out", tmp_path, "--version", 9)[0] == 0
        assert run("tiny", "--out", tmp_path, "--version", 3)[0] == 0
        assert run("tiny", "--out", tmp_path)[0] == 0
        assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == ["10", "3", "9"]

    def test_missing_folders_are_made(self, tmp_path: Path) -> None:
        assert run("tiny", "--out", tmp_path / "a/b")[0] == 0
        assert files(tmp_path / "a/b") == complete("tiny/1")

    def test_artifacts_is_where_it_writes_by_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("tiny")[0] == 0
        assert files(tmp_path) == complete("artifacts/tiny/1")

    @pytest.mark.parametrize("model", ["tiny", "unscriptable"])
    def test_tracing(self, tmp_path: Path, model: str) -> None:
        assert run(model, "--out", tmp_path, "--method", "trace")[0] == 0
        assert files(tmp_path) == complete(f"{model}/1", "trace")
        assert list(manifest_of(tmp_path / f"{model}/1").variants) == ["trace"]

    def test_weights_are_loaded_instead_of_training(self, tmp_path: Path) -> None:
        weights = tmp_path / "weights.pt"
        torch.save({"weight": torch.tensor([5.0, 7.0])}, weights)
        code, printed = run("tiny", "--out", tmp_path / "out", "--weights", weights)
        assert code == 0
        assert "training" not in printed
        golden = manifest_of(tmp_path / "out/tiny/1").golden[0]
        assert golden.outputs["y"].array().tolist() == [15, 28]

    def test_the_folder_can_be_read_by_others(self, tmp_path: Path) -> None:
        run("tiny", "--out", tmp_path)
        assert (tmp_path / "tiny/1").stat().st_mode & 0o777 == 0o755


def refused(
    code: int, arguments: list[object], capsys: pytest.CaptureFixture[str], out: Path | None = None
) -> str:
    """Checks the code, that one line tells why, and that nothing was left in `out`."""
    assert run(*arguments)[0] == code
    message = capsys.readouterr().err
    assert message.startswith("export: ")
    assert message.count("\n") == 1
    if out is not None:
        assert list(out.rglob("*")) == []
    return message


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["unknown"],
                "unknown model 'unknown'; there are: liar, moody, nan, tiny, unscriptable",
            ),
            ([], "the following arguments are required: model"),
            (["tiny", "--version", "0"], "--version must be 1 to 999999999, got 0"),
            (["tiny", "--version", "-3"], "--version must be 1 to 999999999, got -3"),
            (["tiny", "--version", "1000000000"], "--version must be 1 to 999999999"),
            (["tiny", "--version", "two"], "argument --version: invalid int value: 'two'"),
            (["tiny", "--method", "compile"], "argument --method: invalid choice: 'compile'"),
            (["tiny", "--turbo"], "unrecognized arguments: --turbo"),
            (["tiny", "nan"], "unrecognized arguments: nan"),
        ],
    )
    def test_arguments(
        self,
        arguments: list[object],
        message: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        told = refused(2, [*arguments, "--out", tmp_path], capsys, tmp_path)
        assert message in told

    def test_a_version_that_exists(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("tiny", "--out", tmp_path)
        before = (tmp_path / "tiny/1/manifest.json").read_bytes()
        message = refused(2, ["tiny", "--out", tmp_path, "--version", 1], capsys)
        assert "leave --version out to make version 2" in message
        assert files(tmp_path) == complete("tiny/1")
        assert (tmp_path / "tiny/1/manifest.json").read_bytes() == before

    @pytest.mark.parametrize("out", ["file", "file/below"])
    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        message = refused(2, ["tiny", "--out", tmp_path / out], capsys)
        assert f"cannot write to {tmp_path / out}/tiny: Not a directory" in message
        assert files(tmp_path) == ["file"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "No such file or directory"),
            (b"", "not a state_dict"),
            (b"garbage", "not a state_dict"),
            (b"PK\x03\x04", "zip archive"),
            (torch.zeros(2), "Expected state_dict to be dict-like"),
            ([1, 2], "Expected state_dict to be dict-like"),
            ({"other": torch.ones(2)}, 'Missing key(s) in state_dict: "weight"'),
            ({"weight": torch.ones(3)}, "size mismatch for weight"),
            (Path("pickled"), "not a state_dict"),
        ],
        ids=["missing", "empty", "garbage", "zip", "tensor", "list", "names", "shape", "pickle"],
    )
    def test_weights(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, message: str
    ) -> None:
        weights, out = tmp_path / "weights.pt", tmp_path / "out"
        if isinstance(content, bytes):
            weights.write_bytes(content)
        elif content is not None:
            torch.save(content, weights)
        told = refused(2, ["tiny", "--out", out, "--weights", weights], capsys, out)
        assert f"--weights {weights}: " in told
        assert message in told


class TestFailed:
    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("liar", "random inputs, batch 1: output 'y' differs by up to 0.001"),
            ("moody", "the model fails on x [4, 2]: builtins.ValueError: more than three"),
            ("nan", "random inputs, batch 1: the eager model's output 'y' is not finite"),
        ],
    )
    def test_no_parity_no_artifact(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, message: str
    ) -> None:
        assert message in refused(1, [model, "--out", tmp_path], capsys, tmp_path)

    def test_what_cannot_be_scripted_is_told_of_tracing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("unscriptable", "--out", tmp_path)[0] == 1
        message = capsys.readouterr().err
        assert "torch.jit.script refused 'unscriptable'; try --method trace: " in message
        assert list(tmp_path.rglob("*")) == []

    def test_earlier_versions_stay_as_they_are(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        catalog = dict(CATALOG)
        assert main(["tiny", "--out", str(tmp_path)], catalog, Console(file=io.StringIO())) == 0
        catalog["tiny"] = CATALOG["liar"]
        assert main(["tiny", "--out", str(tmp_path)], catalog, Console(file=io.StringIO())) == 1
        assert files(tmp_path) == complete("tiny/1")
        assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["1"]


def test_help_tells_of_every_option_model_and_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    for option in ("--out FOLDER", "--method {script,trace}", "--version N", "--weights FILE"):
        assert option in told
    for model, definition in CATALOG.items():
        assert f"{model}: {definition.description}" in told
    assert "exit codes: 0 " in told
