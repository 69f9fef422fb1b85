"""TorchServe archives: what is adopted, warned about and rejected; none of it is run."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from export.errors import ExportError
from export.reading import mar as module
from export.reading.mar import DEFAULT_HANDLERS, IMAGE_CLASSIFIER, PLAIN, Mar, labels_of, read_mar
from models.system.archive import check_archive
from tests.unit.export.torchscripts import MODEL, SUMS, archived, mar

FILES = {"sums.pt": SUMS}
HANDLER = b"raise SystemExit('this must never run')"


def read(data: bytes) -> Mar:
    return read_mar(data, check_archive(io.BytesIO(data), "it.mar"), "it.mar")


def rejected(data: bytes) -> str:
    with pytest.raises(ExportError) as excinfo:
        read(data)
    return str(excinfo.value)


class TestArchiverFiles:
    """What the public torch-model-archiver writes."""

    def test_all_archive_fields_are_read(self, tmp_path: Path) -> None:
        labels = json.dumps({"1": "less", "0": ["n01", "more"]}).encode()
        files = {"sums.pt": SUMS, "index_to_name.json": labels, "notes.txt": b"hm"}
        answer = read(archived(tmp_path, files, "--handler", "text_classifier").read_bytes())
        assert (answer.model, answer.version, answer.handler) == (
            "packed",
            "1.0",
            "text_classifier",
        )
        assert (answer.serialized_file, answer.data) == ("sums.pt", SUMS)
        assert answer.labels == ("more", "less")
        assert answer.defaults == PLAIN
        assert answer.other_files == ("notes.txt",)

    @pytest.mark.parametrize("form", ["default", "zip-store"])
    def test_both_zip_formats_are_read(self, tmp_path: Path, form: str) -> None:
        options = ("--handler", "image_classifier", "--archive-format", form)
        answer = read(archived(tmp_path, FILES, *options).read_bytes())
        assert answer.data == SUMS
        assert answer.defaults == IMAGE_CLASSIFIER
        assert answer.labels is None
        assert answer.warnings() == ()

    @pytest.mark.parametrize("handler", ["own.py", "own", "own.py:start"])
    def test_custom_handler_is_named_and_not_run(self, tmp_path: Path, handler: str) -> None:
        (tmp_path / "own.py").write_bytes(HANDLER)
        if handler == "own.py:start":  # which the archiver writes unchanged, next to the file
            model = MODEL | {"handler": handler}
            answer = read(mar({**FILES, "own.py": HANDLER}, model))
        else:
            answer = read(archived(tmp_path, FILES, "--handler", handler).read_bytes())
        assert answer.defaults == PLAIN
        (warning,) = answer.warnings()
        assert f"the archive's own handler {handler!r} is not run: describe what it does" in warning

    def test_eager_model_error_explains_the_fix(self, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_bytes(HANDLER)
        options = ("--handler", "image_classifier", "--model-file", "net.py")
        data = archived(tmp_path, {"net.pth": b"weights"}, *options).read_bytes()
        message = rejected(data)
        assert "packed" not in message
        assert "it.mar has an eager model: weights, and the Python class in 'net.py'" in message
        assert "torch.jit.script(model.eval()).save('model.pt')" in message

    def test_unused_requirements_and_settings_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "requirements.txt").write_text("numpy")
        (tmp_path / "settings.yaml").write_text("{}")
        options = ("--requirements-file", "requirements.txt", "--config-file", "settings.yaml")
        data = archived(tmp_path, FILES, "--handler", "base_handler", *options).read_bytes()
        message = "these files of the archive are not used: requirements.txt, settings.yaml"
        assert read(data).warnings() == (message,)


class TestHandlers:
    @pytest.mark.parametrize("handler", sorted(DEFAULT_HANDLERS))
    def test_default_handlers(self, handler: str) -> None:
        answer = read(mar(FILES, MODEL | {"handler": handler}))
        message = answer.warnings()
        assert answer.defaults == (IMAGE_CLASSIFIER if handler == "image_classifier" else PLAIN)
        if handler in ("base_handler", "image_classifier"):
            assert message == ()
        else:
            assert len(message) == 1
            assert message[0].startswith(f"the handler {handler!r} is not run: ")

    @pytest.mark.parametrize("handler", ["object_detector", "image_segmenter"])
    def test_class_names_of_detectors_are_not_labels(self, handler: str) -> None:
        files = {**FILES, "index_to_name.json": b'["a"]'}
        archive = read(mar(files, MODEL | {"handler": handler}))
        assert archive.labels is None
        assert archive.other_files == ("index_to_name.json",)


class TestRejected:
    @pytest.mark.parametrize(
        ("manifest", "message"),
        [
            (b"{", "MAR-INF/MANIFEST.json is not JSON: "),
            (b"[" * 100_000, "MAR-INF/MANIFEST.json is not JSON: "),
            (b"1" * 10_000, "MAR-INF/MANIFEST.json is not JSON: "),
            (b"[]", 'it.mar: MAR-INF/MANIFEST.json has no object "model"'),
        ],
        ids=["open", "deep", "long", "list"],
    )
    def test_manifests(self, manifest: bytes, message: str) -> None:
        assert message in rejected(mar(FILES, manifest=manifest))

    @pytest.mark.parametrize("key", ["modelName", "serializedFile", "handler"])
    @pytest.mark.parametrize("value", [None, "", 3, ["x"]])
    def test_manifests_with_missing_fields(self, key: str, value: object) -> None:
        message = rejected(mar(FILES, MODEL | {key: value}))
        assert f"it.mar: MAR-INF/MANIFEST.json names no {key}" in message

    def test_a_missing_file(self) -> None:
        message = rejected(mar(FILES, MODEL | {"serializedFile": "../../sums.pt"}))
        assert message == "it.mar has no file '../../sums.pt', which its manifest names"

    def test_a_damaged_entry(self) -> None:
        data = mar({"sums.pt": b"0123456789" * 30})
        at = data.index(b"sums.pt") + len("sums.pt") + 4
        assert "it.mar is damaged: " in rejected(data[:at] + b"\xff\xff" + data[at + 2 :])

    @pytest.mark.parametrize("name", ["MAR-INF/MANIFEST.json", "index_to_name.json"])
    def test_oversized_json_files(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 200)
        monkeypatch.setattr(module, "MAX_LABELS_BYTES", 200)
        model, labels = dict(MODEL), b'["a", "b"]'
        assert read(mar({**FILES, "index_to_name.json": labels}, model)).labels == ("a", "b")
        if name == "index_to_name.json":
            labels += b" " * 200
        else:
            model["padding"] = "x" * 200
        message = rejected(mar({**FILES, "index_to_name.json": labels}, model))
        assert message.startswith(f"{name} has ")
        assert message.endswith(" bytes; at most 200 are read")

    def test_an_archive_without_a_manifest(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("sums.pt", SUMS)
        assert "it.mar has no MAR-INF/MANIFEST.json" in rejected(buffer.getvalue())


class TestLabels:
    @pytest.mark.parametrize(
        ("value", "labels"),
        [
            (["cat", "dog"], ("cat", "dog")),
            ({str(index): f"l{index}" for index in reversed(range(12))}, None),
            ({"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}, ("tench", "goldfish")),
            ({"object_type_names": ["cat", "dog"]}, ("cat", "dog")),
        ],
    )
    def test_in_order_of_the_index(self, value: object, labels: tuple[str, ...] | None) -> None:
        expected = labels or tuple(f"l{index}" for index in range(12))
        assert labels_of(value, "labels.json") == expected

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([], "labels.json is neither a list of labels nor an object of index -> label"),
            (None, "labels.json is neither a list"),
            ({"0": "cat", "2": "dog"}, "2 labels, but none for the index 1: the indices must be 0"),
            ({"cat": "0"}, "none for the index 0"),
            (["cat", 3], "labels.json: the label of the index 1 is not text: 3"),
            ([["n01", None]], "the label of the index 0 is not text: None"),
            ({"object_type_names": 3}, "labels.json is neither a list"),
        ],
    )
    def test_refused(self, value: object, message: str) -> None:
        with pytest.raises(ExportError) as excinfo:
            labels_of(value, "labels.json")
        assert message in str(excinfo.value)
