"""Bodies without a type, and files in forms: recognized by their first bytes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from app.api.payloads import CURLS_DEFAULT, read_items
from app.codecs.base import NPY, NPZ, OCTET_STREAM, Codec
from app.codecs.choose import codec_for
from app.errors import InvalidInput, PayloadTooLarge, TorchlaneError, UnsupportedMediaType
from app.types import Array
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.preprocess import preprocess
from tests.forms import FORM, files, form, part
from tests.fuzz.raw_bodies import npy
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.pictures import encoded, grey, noise, plus

HOW = PicturePreprocess(width=6, height=5, channels=1, mean=(0.2,), std=(0.5,))
PICTURES = codec_for(
    make_manifest([spec("x", shape=(-1, 1, 5, 6))], codec=ImageCodecSpec(preprocess=HOW))
)
NUMBERS = codec_for(make_manifest([spec("x", shape=(-1, 2))]))
OBJECTS = codec_for(make_manifest([spec("a", shape=(-1, 2)), spec("b", shape=(-1, 2))]))
PNG = grey(plus())
JPEG = encoded(Image.fromarray(noise(7, 9)), "JPEG")
LEVELS = {"values": "levels", "mean": (0.0,), "std": (1.0,)}
TENSOR = np.linspace(-1, 1, 30, dtype=np.float32).reshape(1, 5, 6)
PAIR = np.array([1, 2], np.float32)


def read(
    codec: Codec, content_type: str, body: bytes, *, many: bool = False, max_items: int = 3
) -> list[Array]:
    items = read_items(codec, content_type, body, many=many, max_items=max_items)
    return [item.arrays["x"] for item in items]


def rejected(kind: type[TorchlaneError], codec: Codec, content_type: str, body: bytes) -> str:
    with pytest.raises(kind) as caught:
        read(codec, content_type, body)
    return str(caught.value)


@pytest.mark.parametrize("content_type", ["", CURLS_DEFAULT, f"{CURLS_DEFAULT.upper()};x=y"])
class TestUndeclaredType:
    @pytest.mark.parametrize("many", [False, True])
    @pytest.mark.parametrize("body", [PNG, JPEG], ids=["png", "jpeg"])
    def test_a_picture(self, content_type: str, body: bytes, many: bool) -> None:
        (got,) = read(PICTURES, content_type, body, many=many)
        np.testing.assert_array_equal(got, preprocess(body, HOW))

    @pytest.mark.parametrize("blanks", [b"", b" \r\n\t"])
    def test_json(self, content_type: str, blanks: bytes) -> None:
        body = blanks + b'{"input": [1, 2]}'
        np.testing.assert_array_equal(read(NUMBERS, content_type, body), [PAIR])

    def test_file_type_unsupported_by_the_model(self, content_type: str) -> None:
        told = rejected(UnsupportedMediaType, NUMBERS, content_type, PNG)
        assert told.endswith(f"{OCTET_STREAM}, {NPY}, {NPZ}, not 'image/png'")
        assert "not 'application/x-npy'" in rejected(
            UnsupportedMediaType, OBJECTS, content_type, npy(PAIR)
        )


@pytest.mark.parametrize("body", [b"", b"a=b", PAIR.tobytes(), PNG.replace(b"\r\n", b"")])
def test_unknown_data_with_curls_default_type(body: bytes) -> None:
    told = rejected(UnsupportedMediaType, NUMBERS, CURLS_DEFAULT, body)
    assert "-H 'Content-Type: application/json'" in told
    assert told.endswith(f"This model accepts application/json, {OCTET_STREAM}, {NPY}, {NPZ}")


class TestOctets:
    """They are numbers, or a file if they begin like one and can be read."""

    @pytest.mark.parametrize("body", [PNG, JPEG], ids=["png", "jpeg"])
    def test_a_picture(self, body: bytes) -> None:
        (got,) = read(PICTURES, OCTET_STREAM, body)
        np.testing.assert_array_equal(got, preprocess(body, HOW))

    @pytest.mark.parametrize("beginning", [JPEG[:3], b"\xff\xd8\xff\xc9"])
    @pytest.mark.parametrize("media_type", [OCTET_STREAM, FORM])
    def test_levels_that_begin_like_a_file(self, beginning: bytes, media_type: str) -> None:
        how = ImageCodecSpec(preprocess=HOW.model_copy(update=LEVELS))
        codec = codec_for(make_manifest([spec("x", "uint8", shape=(-1, 1, 5, 6))], codec=how))
        one = beginning.ljust(30, b"\1")
        (got,) = read(codec, media_type, files(one) if media_type == FORM else one)
        assert got.tobytes() == one
        if media_type == OCTET_STREAM:
            got, other = read(codec, media_type, one + bytes(30), many=True)
            assert (got.tobytes(), other.tobytes()) == (one, bytes(30))
        wrong = one[:-1]
        told = rejected(
            InvalidInput, codec, media_type, files(wrong) if media_type == FORM else wrong
        )
        assert "JPEG" in told or "damaged" in told
        assert "bytes" not in told

    @pytest.mark.parametrize("beginning", [PNG[:8], JPEG[:3], npy(PAIR)[:6], b'{"'])
    def test_octets_are_always_numbers_for_tensor_models(self, beginning: bytes) -> None:
        codec = codec_for(make_manifest([spec("x", "uint8", shape=(-1, 8))]))
        body = beginning.ljust(8, b"\1")
        assert read(codec, OCTET_STREAM, body)[0].tobytes() == body
        if not beginning.startswith(b"\x93"):  # of files in forms curl says so, too
            assert read(codec, FORM, files(body))[0].tobytes() == body


class TestForms:
    @pytest.mark.parametrize("content_type", ["image/jpeg", OCTET_STREAM, "text/plain", None])
    @pytest.mark.parametrize("body", [PNG, JPEG], ids=["png", "jpeg"])
    def test_a_picture_with_any_media_type(self, body: bytes, content_type: str | None) -> None:
        headers = {} if content_type is None else {"Content_Type": content_type}
        (got,) = read(PICTURES, FORM, form(part(body, **headers)))
        np.testing.assert_array_equal(got, preprocess(body, HOW))

    @pytest.mark.parametrize("content_type", [OCTET_STREAM, NPY])
    def test_an_npy_file(self, content_type: str) -> None:
        body = files(npy(PAIR), content_type=content_type)
        np.testing.assert_array_equal(read(NUMBERS, FORM, body), [PAIR])

    def test_several_files_are_several_items(self) -> None:
        got = read(PICTURES, FORM, files(PNG, npy(TENSOR), JPEG), many=True)
        wanted = [preprocess(PNG, HOW), TENSOR, preprocess(JPEG, HOW)]
        np.testing.assert_array_equal(got, wanted)

    def test_a_file_is_one_item(self) -> None:
        """Not a batch: its place among the answers would say nothing."""
        told = "inputs[1]: 'x': expected 8 bytes (little-endian float32 of shape [2]), got 16"
        body = files(PAIR.tobytes(), PAIR.tobytes() * 2)
        with pytest.raises(InvalidInput) as caught:
            read(NUMBERS, FORM, body, many=True)
        assert str(caught.value) == told
        assert caught.value.details[0]["index"] == 1

    def test_the_pictures_share_a_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.codecs.base.MAX_REQUEST_PIXELS", 12 * 12 + 1)
        assert len(read(PICTURES, FORM, files(PNG), many=True)) == 1
        with pytest.raises(PayloadTooLarge, match="pixels in total"):
            read(PICTURES, FORM, files(PNG, PNG), many=True)

    @pytest.mark.parametrize(
        ("codec", "part_of_it", "told"),
        [
            (PICTURES, part(b"II*\0", Content_Type="image/tiff"), "not 'image/tiff'"),
            (PICTURES, part(b"II*\0"), "or .npz file, and it has no"),
            (NUMBERS, part(PNG, Content_Type="image/png"), "not 'image/png'"),
            (NUMBERS, part(PNG), "not 'image/png'"),
            (OBJECTS, part(b"a"), "accepts files of application/x-npz"),
            (NUMBERS, part(b"{}", Content_Type="application/json"), "send JSON as the body"),
            (
                NUMBERS,
                part(form(part(b"a"), boundary="y"), Content_Type="multipart/mixed; boundary=y"),
                "/mixed'",
            ),
            (NUMBERS, part(b"a", Content_Type="x" * 999), "xxx...'"),
        ],
    )
    def test_unsupported_file_types(self, codec: Codec, part_of_it: bytes, told: str) -> None:
        assert told in rejected(UnsupportedMediaType, codec, FORM, form(part_of_it))

    def test_content_encoding_of_a_part_is_ignored(self) -> None:
        zipped = part(b"\x1f\x8b\x08", Content_Encoding="gzip", Content_Type="image/png")
        assert "neither a PNG, a JPEG" in rejected(InvalidInput, PICTURES, FORM, form(zipped))
