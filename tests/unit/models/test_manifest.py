"""The manifest: exact through JSON, and strictly validated."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from models.codec_specs import CodecSpec, ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from models.manifest import LARGE_BYTES, FileDigest, Manifest, forms_of
from models.tensors import TensorSpec, Tolerance
from tests.unit.models.manifests import example, form, make_manifest, make_variant, spec

PICTURE = ImageCodecSpec(
    preprocess=PicturePreprocess(width=4, height=3, channels=1, mean=(0.1,), std=(0.3,))
)


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("inputs", "codec"),
        [
            ([spec("x", shape=(-1, 2, -1))], TensorCodecSpec(scores="sigmoid")),
            ([spec("a", "int64"), spec("b", "bool", (-1,))], None),
            ([spec("x", shape=(-1, 1, 3, 4))], PICTURE),
        ],
    )
    def test_manifest_survives_a_json_round_trip(
        self, inputs: list[TensorSpec], codec: CodecSpec | None
    ) -> None:
        manifest = make_manifest(inputs, codec=codec)
        text = manifest.model_dump_json()
        again = Manifest.model_validate_json(text)
        assert again == manifest
        assert again.model_dump_json() == text


class TestStrictness:
    @pytest.mark.parametrize("field", ["version", "golden", "unheard_of"])
    def test_fields_cannot_be_assigned(self, field: str) -> None:
        with pytest.raises(ValidationError):
            setattr(make_manifest(), field, 2)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (("surprise",), 1, "Extra inputs"),
            (("codec", "surprise"), 1, "Extra inputs"),
            (("schema_version",), 1, "Input should be 2"),
            (("version",), 0, "greater than or equal to 1"),
            (("model",), "..", "match pattern"),
            (("model",), "x" * 65, "match pattern"),
            (("inputs", 0, "name"), "x.y", "match pattern"),
            (("inputs", 0, "shape"), [], "axis 0 is the batch"),
            (("inputs", 0, "shape"), [-1, 0], "sizes must be positive"),
            (("inputs", 0, "dtype"), "complex64", "Input should be 'float16'"),
            (("inputs",), [], "at least 1"),
            (("variants",), {}, "at least 1"),
            (("files",), {}, "names 'script.pt', which has no digest"),
            (("files", "../evil"), {"sha256": "ab" * 32, "bytes": 1}, "match pattern"),
            (("files", "script.pt", "sha256"), "AB" * 32, "match pattern"),
            (("variants", "script", "file"), "../script.pt", "match pattern"),
            (("variants", "script", "accuracy"), 1.5, "less than or equal to 1"),
            (("variants", "script", "tolerance", "absolute"), float("inf"), "finite"),
            (("codec", "kind"), "speech", "does not match any of the expected tags"),
            (("codec", "labels"), ["a", "b"], "2 labels need a first output of shape [-1, 2]"),
            (("golden", 0, "inputs"), {}, "golden[0].inputs must have ['x']"),
            (("golden", 0, "inputs", "x", "dtype"), "int32", "golden[0].inputs['x'] is int32[1]"),
            (("golden", 0, "inputs", "x", "data"), "AAAA", "has 3 bytes, its shape needs 4"),
            (("golden", 0, "inputs", "x", "data"), "?", "not base64"),
        ],
    )
    def test_a_wrong_field_is_refused(
        self, path: tuple[str | int, ...], value: object, message: str
    ) -> None:
        content = copy.deepcopy(make_manifest().model_dump(mode="json"))
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(ValidationError) as caught:
            Manifest.model_validate(content)
        assert message in str(caught.value)

    @pytest.mark.parametrize("which", ["inputs", "outputs"])
    def test_names_must_differ(self, which: str) -> None:
        content = make_manifest().model_dump(mode="json")
        content[which] = content[which] * 2
        with pytest.raises(ValidationError, match=f"{which[:-1]} names must differ"):
            Manifest.model_validate(content)

    def test_bytes_are_for_handlers(self) -> None:
        content = make_manifest().model_dump(mode="json")
        content["inputs"][0] |= {"dtype": "bytes", "shape": [-1, 2]}
        with pytest.raises(ValidationError, match="'x' is declared as bytes; only tensors of hand"):
            Manifest.model_validate(content)

    @pytest.mark.parametrize(
        "inputs",
        [
            [spec("x", shape=(-1, 1, 4, 3))],
            [spec("x", shape=(-1, 12))],
            [spec("x", "uint8", (-1, 1, 3, 4))],
            [spec("x", shape=(-1, 1, 3, 4)), spec("y")],
        ],
    )
    def test_picture_models_need_one_matching_input(self, inputs: list[TensorSpec]) -> None:
        with pytest.raises(ValidationError, match=r"and shape \[-1, 1, 3, 4\]|the inputs are"):
            make_manifest(inputs, codec=PICTURE)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"mean": (0.0,)}, "mean and std need 3 numbers"),
            ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
            ({"std": (1.0, float("nan"), 1.0)}, "finite"),
            ({"values": "levels", "mean": (0.5,) * 3}, "mean must be 0, and std 1"),
            ({"width": 0}, "greater than or equal to 1"),
            ({"channels": 2}, "Input should be 1 or 3"),
            ({"fit": "squash"}, "Input should be 'pad', 'crop', 'stretch' or 'none'"),
            ({"resize_shorter": 4}, "resize_shorter is only for fit 'crop'"),
            ({"fit": "stretch", "resize_shorter": 1}, "needs resize_shorter, at least 2 for 2 x 2"),
            ({"fit": "stretch", "resize_shorter": 4, "width": 3}, "needs as many pixels across as"),
            ({"fit": "stretch", "fill": 0}, "fill is only for fit 'pad'"),
            ({"fill": 256}, "less than or equal to 255"),
            ({"fill": "mean", "mean": (0.5, 1.5, 0.5)}, "fill 'mean' needs a mean from 0 to 1"),
            ({"fit": "crop"}, "needs resize_shorter, at least 2 for 2 x 2 pixels"),
            ({"fit": "crop", "height": 5, "resize_shorter": 4}, "at least 5 for 2 x 5"),
        ],
    )
    def test_a_wrong_preprocess_is_refused(self, change: dict[str, Any], message: str) -> None:
        right = {"width": 2, "height": 2, "channels": 3, "mean": (0.0,) * 3, "std": (1.0,) * 3}
        PicturePreprocess.model_validate(right)
        with pytest.raises(ValidationError, match=message):
            PicturePreprocess.model_validate(right | change)


def test_pictures_are_padded_by_default() -> None:
    fields = {"width": 2, "height": 2, "channels": 1, "mean": [0.0], "std": [1.0]}
    silent = PicturePreprocess.model_validate(fields)
    assert (silent.fit, silent.resize_shorter) == ("pad", None)
    assert (silent.interpolation, silent.fill, silent.alpha) == ("bilinear", "border", "white")
    cut = PicturePreprocess.model_validate(fields | {"fit": "crop", "resize_shorter": 3})
    assert PicturePreprocess.model_validate_json(cut.model_dump_json()) == cut


def test_public_part_omits_golden_data_and_digests() -> None:
    public = make_manifest().public()
    left_out = {"golden", "files", "training", "real_inputs"}  # the last if it is empty
    assert set(Manifest.model_fields) - set(public) == left_out
    assert "ab" * 32 not in str(public)


class TestTensorSpec:
    @pytest.mark.parametrize(
        ("shape", "item", "fits"),
        [
            ((-1,), (1,), False),
            ((-1, 2, 3), (2, 3), True),
            ((-1, 2, 3), (3, 2), False),
            ((-1, -1, 3), (7, 3), True),
        ],
    )
    def test_accepts_compares_without_the_batch_axis(
        self, shape: tuple[int, ...], item: tuple[int, ...], fits: bool
    ) -> None:
        assert spec(shape=shape).accepts(item) is fits

    def test_bytes_of_an_item(self) -> None:
        assert spec(dtype="int16", shape=(-1, 3, 5)).item_bytes == 30
        assert spec(dtype="float64", shape=(-1,)).item_bytes == 8
        with pytest.raises(ValueError, match="free dimensions"):
            _ = spec(shape=(-1, -1)).item_bytes


class TestTolerance:
    tolerance = Tolerance(absolute=0.1, relative=0.01)

    @pytest.mark.parametrize(
        ("expected", "got", "says"),
        [
            ([0.0], [0.2], "differs by up to 0.2 (allowed: 0.1 + 0.01 * |value|)"),
            ([1.0], [np.nan], "differs by up to nan"),
            ([np.inf, 1.0], [np.inf, 2.0], "differs"),
            ([1.0], [1.0, 1.0], "shape [2] instead of [1]"),
        ],
    )
    def test_beyond(self, expected: list[float], got: list[float], says: str) -> None:
        excess = self.tolerance.excess(np.array(expected), np.array(got))
        assert excess is not None
        assert excess.startswith(says)

    def test_share_of_the_integers_may_differ(self) -> None:
        expected = np.zeros(20, np.int64)
        tolerance = self.tolerance.model_copy(update={"integer_share": 0.1})
        assert tolerance.excess(expected, np.arange(20) // 18) is None
        told = "differs in 3 of 20 values, of which 2 may differ"
        assert tolerance.excess(expected, np.arange(20) // 17) == told
        assert tolerance.excess(expected[:9], np.arange(9) // 8) == "differs in 1 of 9 values"

    def test_booleans_must_be_equal(self) -> None:
        one, other = np.array([True, False]), np.array([True, True])
        assert self.tolerance.excess(one, one) is None
        assert self.tolerance.excess(one, other) == "differs in 1 of 2 values"
        lossy = self.tolerance.model_copy(update={"exact_integers": False})
        assert lossy.excess(one, other) is None


def test_golden_arrays_are_checked_in_every_example() -> None:
    good = example({"x": np.zeros(1, np.float32)}, {"value": np.zeros(1, np.float32)})
    bad = example({"x": np.zeros(1, np.float32)}, {"value": np.zeros(2, np.float32)})
    with pytest.raises(ValidationError, match=r"golden\[1\]\.outputs"):
        make_manifest(golden=[good, bad])


def test_forms_follow_variant_order_with_plain_first() -> None:
    script = make_variant(optimized=True)
    bf16 = make_variant("bf16.pt", "bf16")
    forms = forms_of({"script": script, "bf16": bf16})
    assert list(forms) == [form("script"), form("script", optimized=True), form("bf16")]
    assert list(forms.values()) == [script, script, bf16]


def test_differing_lossy_forms_may_not_be_mixed() -> None:
    script, bf16 = make_variant(), make_variant("bf16.pt", "bf16")
    manifest = make_manifest(variants={"script": script, "bf16": bf16})
    assert manifest.may_mix([script, bf16])
    assert not manifest.may_mix([bf16.model_copy(update={"interchangeable": False})])
    assert manifest.may_mix([script.model_copy(update={"interchangeable": False})])


def test_forms_of_a_large_model_may_not_be_mixed() -> None:
    digest = FileDigest(sha256="0" * 64, bytes=LARGE_BYTES + 1)
    script = make_variant()
    manifest = make_manifest().model_copy(update={"files": {script.file: digest}})
    assert manifest.is_large(script)
    assert not manifest.may_mix([script])
