"""Pictures in base64 or as bytes, and tensors as well."""

from __future__ import annotations

import base64
import subprocess
import sys
import tracemalloc
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from app.api.payloads import read_items
from app.codecs.base import NPZ, OCTET_STREAM, Budget, TooLongForLoop
from app.codecs.image import ImageCodec
from app.errors import InvalidInput, PayloadTooLarge, UnsupportedMediaType
from app.types import Array, Item, signature_of
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.inputs.preprocess import preprocess
from models.places import Boxes
from models.tensors import Dimension, TensorSpec
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.pictures import encoded, exif_data, grey, noise, plus

HOW = PicturePreprocess(width=6, height=5, channels=1, mean=(0.2,), std=(0.5,), polarity="auto")
CODEC = ImageCodec(
    make_manifest([spec("picture", shape=(-1, 1, 5, 6))], codec=ImageCodecSpec(preprocess=HOW))
)
PNG = grey(plus())
JPEG = encoded(Image.fromarray(noise(7, 9)), "JPEG")


def decode(value: object) -> Array:
    return CODEC.decode(value).arrays["picture"]


@pytest.mark.parametrize("data", [PNG, JPEG], ids=["png", "jpeg"])
class TestAccepted:
    @pytest.mark.parametrize("prefix", ["", "data:image/png;base64,", "data:;base64,"])
    def test_base64(self, data: bytes, prefix: str) -> None:
        value = prefix + base64.b64encode(data).decode()
        np.testing.assert_array_equal(decode(value), preprocess(data, HOW))

    @pytest.mark.parametrize("media_type", ["image/png", "image/jpeg"])
    @pytest.mark.parametrize("many", [False, True])
    def test_bytes_of_either_kind(self, data: bytes, media_type: str, many: bool) -> None:
        (item,) = CODEC.decode_raw(media_type, data, max_items=100 if many else None)
        assert item.arrays["picture"].shape == (1, 5, 6)
        np.testing.assert_array_equal(item.arrays["picture"], preprocess(data, HOW))


class TestBase64:
    """Of the picture below, in every form that programs write."""

    data = encoded(Image.fromarray(noise(16, 16)))
    plain = base64.b64encode(data).decode()

    @pytest.mark.parametrize(
        "written",
        [
            base64.encodebytes(data).decode(),  # as `base64` prints it, and MIME
            base64.encodebytes(data).decode().replace("\n", "\r\n"),
            plain + "\n",
            "\n".join(plain),
            "data:image/png;base64," + base64.encodebytes(data).decode(),
            "data:image/png;base64," + quote(plain, safe=""),
            "DATA:image/png;name=a.png;Base64," + plain,
        ],
        ids=["lines", "CRLF", "line end", "every line", "lines in a URL", "escaped", "capitals"],
    )
    def test_line_ends_and_data_urls(self, written: str) -> None:
        np.testing.assert_array_equal(decode(written), preprocess(self.data, HOW))

    @pytest.mark.parametrize(
        ("written", "why"),
        [
            (base64.urlsafe_b64encode(b"\xff" * 9).decode(), "base64url"),
            (plain[:9] + " " + plain[10:], "blanks"),
            (plain[:-4] + plain[-4:].rstrip("=")[:2], "padding"),
            (f"data:image/png,{plain}", "no `;base64,`"),
            ("data:image/png", "no `;base64,`"),
            ("data:" + "x" * 5000 + ";base64,", "no `;base64,`"),
        ],
    )
    def test_anything_else_is_explained(self, written: str, why: str) -> None:
        with pytest.raises(InvalidInput, match=why):
            decode(written)

    def test_many_lines_take_no_longer_than_their_bytes(self) -> None:
        with pytest.raises(InvalidInput, match="neither a PNG"):
            decode("\n" * (16 << 20) + "Zm9v")


def test_levels_of_a_uint8_input() -> None:
    how = HOW.model_copy(update={"values": "levels", "mean": (0.0,), "std": (1.0,)})
    picture = spec("picture", "uint8", (-1, 1, 5, 6))
    codec = ImageCodec(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))
    (item,) = codec.decode_raw("image/png", PNG, max_items=None)
    assert item.arrays["picture"].dtype == np.uint8
    np.testing.assert_array_equal(item.arrays["picture"], preprocess(PNG, how))
    with pytest.raises(
        ValueError, match=r"pictures need an input of uint8 and shape \[-1, 1, 5, 6"
    ):
        make_manifest([spec("picture", shape=(-1, 1, 5, 6))], codec=codec.manifest.codec)


class TestFreeSizes:
    how = HOW.model_copy(update={"fit": "none", "width": 40, "height": 30})
    sizes = (Dimension(name="h", least=8, most=30), Dimension(name="w", least=8, most=40))
    picture = TensorSpec(name="p", dtype="float32", shape=(-1, 1, -1, -1), dimensions=sizes)
    codec = ImageCodec(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))

    @pytest.mark.parametrize("media_type", ["image/png", OCTET_STREAM])
    def test_each_picture_keeps_its_size(self, media_type: str) -> None:
        for height, width in ((8, 40), (30, 8)):
            pixels = noise(height, width, 1)[..., 0]
            (item,) = self.codec.decode_raw(media_type, grey(pixels), max_items=None)
            assert item.arrays["p"].shape == (1, height, width)

    @pytest.mark.parametrize(
        ("height", "width", "told"),
        [
            (7, 9, "9 x 7 pixels, the model takes a height of 8 to 30, and pictures are not"),
            (9, 41, "41 x 9 pixels, the model takes a width of 8 to 40"),
        ],
    )
    def test_a_picture_of_another_size(self, height: int, width: int, told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            self.codec.decode_raw("image/png", grey(noise(height, width, 1)[..., 0]), max_items=9)

    def test_boxes_need_no_mapping(self) -> None:
        box = Boxes(output="value", form="xyxy")
        with pytest.raises(ValueError, match="not scaled need no mapping"):
            make_manifest([self.picture], codec=ImageCodecSpec(preprocess=self.how, boxes=(box,)))

    def test_octets_are_only_pictures(self) -> None:
        with pytest.raises(InvalidInput, match="the JPEG file is arithmetic-coded"):
            self.codec.decode_raw(OCTET_STREAM, b"\xff\xd8\xff\xc9".ljust(99), max_items=None)

    def test_a_square_picture_is_needed(self) -> None:
        side = Dimension(name="s", least=8, most=64)
        how = self.how.model_copy(update={"width": 64, "height": 64})
        picture = self.picture.model_copy(update={"dimensions": (side, side)})
        codec = ImageCodec(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))
        assert codec.decode_raw("image/png", grey(noise(9, 9, 1)[..., 0]), max_items=None)
        data = grey(noise(30, 20, 1)[..., 0])
        told = "axis 2 has size 20, but axis 1 of 'p' has size 30: both are 's' and must be equal"
        with pytest.raises(InvalidInput, match=told):
            codec.decode_raw("image/png", data, max_items=None)
        with pytest.raises(InvalidInput, match=told):
            codec.decode(np.zeros((1, 30, 20)).tolist())

    def test_the_upright_size_counts(self) -> None:
        turned = encoded(Image.fromarray(noise(40, 30)), "JPEG", exif_data("<", (0x112, 3, 6)))
        (item,) = self.codec.decode_raw("image/jpeg", turned, max_items=None)
        assert item.arrays["p"].shape == (1, 30, 40)


class TestOtherInputs:
    inputs = (
        TensorSpec(name="meta", dtype="float32", shape=(-1, 2)),
        TensorSpec(name="picture", dtype="float32", shape=(-1, 1, 5, 6)),
    )
    codec = ImageCodec(make_manifest(inputs, codec=ImageCodecSpec(preprocess=HOW, input="picture")))
    text = base64.b64encode(PNG).decode()

    def test_by_name(self) -> None:
        item = self.codec.decode({"picture": self.text, "meta": [1, 2.5]})
        assert list(item.arrays) == ["meta", "picture"]
        np.testing.assert_array_equal(item.arrays["picture"], preprocess(PNG, HOW))
        np.testing.assert_array_equal(item.arrays["meta"], np.array([1, 2.5], np.float32))
        assert item.signature == signature_of(item.arrays)

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            ({"picture": "Zm9v", "meta": [1, 2]}, "neither a PNG"),
            ({"picture": text}, "expected an object with 'picture', 'meta', or a form"),
            ({"picture": text, "meta": [1, 2], "x": 1}, "got 'picture', 'meta', 'x'"),
            ({"picture": text, "meta": [1]}, r"'meta': expected float32 of shape \[2\]"),
            ({"picture": text, "meta": "1"}, "'meta': expected"),
            ({"picture": text, "meta": text}, "'meta': expected"),
            (text, "a file alone is not an item; send an object with 'picture', 'meta'"),
        ],
    )
    def test_wrong_objects(self, value: object, told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            self.codec.decode(value)

    def test_a_picture_alone(self) -> None:
        with pytest.raises(UnsupportedMediaType, match="image/png alone is not an item"):
            self.codec.decode_raw("image/png", PNG, max_items=None)
        assert self.codec.media_types == (NPZ,)
        assert self.codec.files is None

    def form(
        self, *parts: tuple[str, bytes], many: bool = False, codec: ImageCodec | None = None
    ) -> list[Item]:
        body = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
            % (name.encode(), data)
            for name, data in parts
        )
        content_type = "multipart/form-data; boundary=x"
        codec = codec or self.codec
        return read_items(codec, content_type, body + b"--x--", many=many, max_items=9)

    @pytest.mark.parametrize("name", ["picture", "file"])
    def test_a_form_with_named_parts(self, name: str) -> None:
        (item,) = self.form(("meta", b"[1, 2.5]"), (name, PNG))
        same = self.codec.decode({"picture": self.text, "meta": [1, 2.5]})
        for each in ("picture", "meta"):
            np.testing.assert_array_equal(item.arrays[each], same.arrays[each])

    @pytest.mark.parametrize("parts", [[("age", b"NaN")], [("age", b"null")], []])
    def test_a_part_may_be_missing(self, parts: list[tuple[str, bytes]]) -> None:
        age = spec("age", shape=(-1,)).model_copy(update={"nan": True})
        how = ImageCodecSpec(preprocess=HOW, input="picture")
        self.codec = ImageCodec(make_manifest([*self.inputs, age], codec=how))
        (item,) = self.form(("meta", b"[1, 2.5]"), ("picture", PNG), *parts)
        assert np.isnan(item.arrays["age"])
        with pytest.raises(InvalidInput, match=r"\(age may be missing\); it has no meta"):
            self.form(("age", b"1"), ("picture", PNG))

    @pytest.mark.parametrize(
        ("parts", "told"),
        [
            ([("picture", PNG)], "must have the parts picture, meta, each once; it has 1"),
            ([("picture", PNG), ("file", PNG)], "each once; it has 'picture' twice"),
            ([("picture", PNG), ("x" * 99, b"1")], "it has 'xxx"),
            ([("picture", PNG), ("meta", b"[1,")], "part 'meta' of the form is not JSON: "),
            ([("picture", PNG), ("meta", b"[1]")], "'meta': expected"),
            ([("picture", b"?"), ("meta", b"[1, 2]")], "neither a PNG"),
            ([("picture", PNG), ("meta", b"")], "part 2 of the form is an empty file"),
        ],
    )
    def test_wrong_forms(self, parts: list[tuple[str, bytes]], told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            self.form(*parts)

    def test_a_form_is_one_item(self) -> None:
        with pytest.raises(UnsupportedMediaType, match="send several items as JSON"):
            self.form(("picture", PNG), ("meta", b"[1, 2]"), many=True)

    def test_boxes_have_their_geometry(self) -> None:
        boxes = spec("boxes", shape=(-1, 7, 4))
        how = ImageCodecSpec(
            preprocess=HOW, input="picture", boxes=(Boxes(output="boxes", form="xyxy"),)
        )
        codec = ImageCodec(make_manifest(self.inputs, [boxes], codec=how))
        item = codec.decode({"picture": self.text, "meta": [0, 0]})
        assert item.note is not None
        assert item.note.image is not None

    def test_the_schema(self) -> None:
        schema = self.codec.item_schema()
        assert schema["properties"]["picture"]["anyOf"][0]["contentEncoding"] == "base64"
        assert schema["required"] == ["meta", "picture"]

    def test_which_input_must_be_told(self) -> None:
        for name in (None, "meta", "other"):
            codec = ImageCodecSpec(preprocess=HOW, input=name)
            with pytest.raises(ValueError, match=r"pictures need an input|the inputs are"):
                make_manifest(self.inputs, codec=codec)


class TestTensors:
    array = np.linspace(-1, 1, 30, dtype=np.float32).reshape(1, 5, 6)

    def test_numbers_count_as_preprocessed(self) -> None:
        for value in (self.array.tolist(), self.array.ravel().tolist()):
            np.testing.assert_array_equal(decode(value), self.array)
        np.testing.assert_array_equal(decode({"picture": self.array.tolist()}), self.array)

    def test_raw_tensors_count_as_preprocessed(self) -> None:
        items = CODEC.decode_raw(OCTET_STREAM, self.array.tobytes() * 2, max_items=100)
        assert len(items) == 2
        np.testing.assert_array_equal(items[1].arrays["picture"], self.array)


class TestRejected:
    @pytest.mark.parametrize(
        "value",
        ["?", "data:image/png;base64,?", "abc", "abc\n", "\n=", "Zm9v Zm9v", "pictüre", "-_-_"],
    )
    def test_invalid_base64(self, value: str) -> None:
        with pytest.raises(InvalidInput, match=r"^'picture': .* this one is not base64"):
            decode(value)

    def test_escapes_take_little_memory(self) -> None:
        """Some decoders create an object for each escape, fifty times as much."""
        value = "data:;base64," + "%41" * 100_000
        tracemalloc.start()
        try:
            with pytest.raises(InvalidInput, match="this one is not base64"):
                decode(value)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 5 * len(value)

    @pytest.mark.parametrize("value", ["", "\n", "Zm9v", "Zm9v\n", "Zm9v\r\nZm9v", "data:;base64,"])
    def test_bytes_that_are_not_a_picture(self, value: str) -> None:
        with pytest.raises(InvalidInput, match=r"^'picture': neither a PNG, a JPEG"):
            decode(value)

    def test_a_damaged_picture(self) -> None:
        with pytest.raises(InvalidInput, match=r"^'picture': the picture is damaged"):
            CODEC.decode_raw("image/png", PNG[: len(PNG) // 2], max_items=None)

    def test_a_manifest_of_another_kind_is_a_bug(self) -> None:
        with pytest.raises(TypeError, match="bug"):
            ImageCodec(make_manifest())


def test_pictures_of_a_request_share_a_budget() -> None:
    picture = grey(np.zeros((2000, 1900), np.uint8))
    budget = Budget()
    for _ in range(4):
        CODEC.decode(base64.b64encode(picture).decode(), budget)
    with pytest.raises(PayloadTooLarge, match="16000000 pixels in total"):
        CODEC.decode(base64.b64encode(picture).decode(), budget)


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (224, 3)])
def test_preprocessing_cost_counts_on_the_loop(side: int, channels: int) -> None:
    how = PicturePreprocess(
        width=side, height=side, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels
    )
    picture = spec("picture", shape=(-1, channels, side, side))
    codec = ImageCodec(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))
    budget = Budget(on_loop=True)
    if side == 224:
        with pytest.raises(TooLongForLoop):
            codec.decode_raw("image/png", PNG, max_items=None, budget=budget)
    else:
        codec.decode_raw("image/png", PNG, max_items=None, budget=budget)


def test_no_request_waits_for_imports() -> None:
    program = f"""if True:
        import sys
        from app.codecs.image import ImageCodec
        from models.codec_specs import ImageCodecSpec, PicturePreprocess
        from models.inputs.preprocess import PictureError, open_picture
        from tests.unit.models.manifests import make_manifest, spec
        how = PicturePreprocess(width=6, height=5, channels=1, mean=(0.2,), std=(0.5,))
        inputs = [spec("picture", shape=(-1, 1, 5, 6))]
        codec = ImageCodec(make_manifest(inputs, codec=ImageCodecSpec(preprocess=how)))
        before = set(sys.modules)
        for picture in {[PNG, JPEG, encoded(Image.fromarray(noise(7, 9)), "WEBP")]!r}:
            codec.decode_raw("image/png", picture, max_items=None)
        try:
            open_picture(b"no picture", how)
        except PictureError:
            print(sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
