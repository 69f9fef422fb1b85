"""The parts kept of a picture's file: pixels, orientation, nothing expensive."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from models.codec_specs import PicturePreprocess
from models.inputs import pictures as module
from models.inputs.pictures import MAX_CHUNKS, MAX_SEGMENTS, PictureError, check_rows, essential
from models.inputs.preprocess import TRANSPOSES, preprocess
from tests.unit.models.pictures import encoded, exif_data, jpeg, noise, png

MIB = 1 << 20
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
ROTATED = Image.Exif()
ROTATED[0x0112] = 6
ROTATED[0x010E] = "a description"


def pixels(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.tobytes()


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def within(jpeg: bytes, *more: bytes) -> bytes:
    """A JPEG file with more behind its first two bytes."""
    return jpeg[:2] + b"".join(more) + jpeg[2:]


def chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


PICTURE = Image.fromarray(noise(20, 30))
PLAIN_JPEG = encoded(PICTURE, "JPEG")
PLAIN_PNG = encoded(PICTURE)
NOTE = segment(0xFE, b"a comment")


class TestSamePixels:
    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
    def test_of_every_png(self, mode: str) -> None:
        picture = Image.fromarray(noise(20, 30)).convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            picture = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
        data = encoded(picture)
        assert pixels(essential(data).data) == pixels(data)

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    @pytest.mark.parametrize("progressive", [False, True])
    def test_of_every_jpeg(self, mode: str, progressive: bool) -> None:
        buffer = io.BytesIO()
        PICTURE.convert(mode).save(
            buffer, "JPEG", progressive=progressive, icc_profile=PROFILE, exif=ROTATED, comment=b"a"
        )
        left, orientation = essential(buffer.getvalue())
        assert pixels(left) == pixels(buffer.getvalue())
        assert PROFILE not in left
        assert orientation == 6
        with Image.open(io.BytesIO(left)) as picture:
            assert picture.mode == mode
            assert "exif" not in picture.info
            assert ("progressive" in picture.info) is progressive

    def test_a_png_keeps_its_orientation_and_loses_texts(self) -> None:
        texts = PngImagePlugin.PngInfo()
        texts.add_text("title", "a title", zip=True)
        buffer = io.BytesIO()
        PICTURE.save(buffer, "PNG", pnginfo=texts, exif=ROTATED, icc_profile=PROFILE)
        left, orientation = essential(buffer.getvalue())
        assert orientation == 6
        with Image.open(io.BytesIO(left)) as picture:
            assert "exif" not in picture.info
            assert "title" not in picture.info
            assert "icc_profile" not in picture.info

    def test_garbage_before_a_segment_is_dropped(self) -> None:
        assert essential(within(PLAIN_JPEG, NOTE, b"rubbish", b"\xff" * 9)) == essential(PLAIN_JPEG)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG", b"\xff\xd8", b"<svg/>"])
def test_other_types_are_left_to_the_codec(data: bytes) -> None:
    assert essential(data) == (data, 1)


MAKER, MODEL = (0x010F, 2, 0), (0x0110, 2, 0)
UNREADABLE = {
    "zeroed": b"Exif\0\0" + bytes(200),
    "all zeros": bytes(200),
    "empty": b"Exif\0\0",
    "half a header": b"Exif\0\0II*\0",
    "cut in the header": b"Exif\0\0MM\0*\0\0",
    "no header": b"Exif\0\0" + exif_data("<", (0x0112, 3, 6))[14:],
    "another header": b"Exif\0\0XX*\0\x08\0\0\0\1\0",
    "text": b"Exif\0\0removed",
    "cut directory": exif_data("<", MAKER, (0x0112, 3, 6))[:-8],
    "directory behind the end": b"Exif\0\0II*\0\xff\xff\xff\xff",
    "directory in the header": b"Exif\0\0II*\0" + bytes(4),
    "huge count": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(60_000),
    "loop": b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 0x010F, 4, 1, 0) + b"\x08\0\0\0",
    **{f"orientation {n}": exif_data(">", (0x0112, 3, n)) for n in (0, 9, 255, 65535)},
    "orientation of 32 bits": exif_data(">", (0x0112, 4, 0xFFFFFFFF)),
    "orientation of another type": exif_data(">", (0x0112, 2, 6)),
}


class TestOrientation:
    """As Pillow finds it, without the work of parsing everything else."""

    @pytest.mark.parametrize("orientation", range(10))
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("kind", [3, 4])
    @pytest.mark.parametrize("form", ["JPEG", "PNG"])
    def test_matches_pillow(self, form: str, kind: int, order: str, orientation: int) -> None:
        exif = exif_data(order, MAKER, MODEL, (0x0112, kind, orientation), (0x0131, 2, 0))
        data = encoded(PICTURE, form, exif)
        how = PicturePreprocess(width=30, height=30, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
        with Image.open(io.BytesIO(data)) as picture:
            wanted = preprocess(ImageOps.exif_transpose(picture), how)
            np.testing.assert_array_equal(preprocess(picture, how), wanted)
        np.testing.assert_array_equal(preprocess(data, how), wanted)

    @pytest.mark.parametrize("whole", UNREADABLE.values(), ids=UNREADABLE)
    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "PNG without prefix", "PNG text"])
    def test_a_whole_picture_with_unreadable_data_is_upright(self, kind: str, whole: bytes) -> None:
        """As programs leave it that remove what it says; readers of pictures ignore it."""
        if kind == "JPEG":
            data, plain = within(PLAIN_JPEG, segment(0xE1, whole)), PLAIN_JPEG
        else:
            exif = whole.removeprefix(b"Exif\0\0") if kind == "PNG without prefix" else whole
            made = chunk(b"eXIf", exif)
            if kind == "PNG text":
                text = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
                made = chunk(b"tEXt", b"Raw profile type exif\0" + text)
            data, plain = PLAIN_PNG[:33] + made + PLAIN_PNG[33:], PLAIN_PNG
        found = essential(data)
        assert TRANSPOSES.get(found.orientation) is None
        assert pixels(found.data) == pixels(plain)

    def test_zeroed_with_its_checksum_or_size_is_upright(self) -> None:
        """A zeroed block of a file that is otherwise unchanged."""
        exif = exif_data("<", (0x0112, 3, 6))
        rotated = within(PLAIN_JPEG, segment(0xE1, exif))
        zeroed = rotated[:4] + bytes(2 + len(exif)) + rotated[6 + len(exif) :]
        assert essential(rotated).orientation == 6
        assert essential(zeroed).orientation == 1
        assert pixels(essential(zeroed).data) == pixels(zeroed) == pixels(PLAIN_JPEG)
        made = chunk(b"eXIf", exif)
        for wrong in (
            made[:8] + bytes(len(exif)) + made[-4:],
            made[:8] + bytes(len(exif) + 4),
            made[:-4] + bytes(4),
        ):
            found = essential(PLAIN_PNG[:33] + wrong + PLAIN_PNG[33:])
            assert (found.orientation, pixels(found.data)) == (1, pixels(PLAIN_PNG))

    def test_cut_off_after_the_pixels_is_upright(self) -> None:
        made = chunk(b"eXIf", exif_data("<", (0x0112, 3, 6)))
        for size in range(len(made)):
            found = essential(PLAIN_PNG[:-12] + made[:size])
            assert (found.orientation, pixels(found.data)) == (1, pixels(PLAIN_PNG))

    @pytest.mark.parametrize("text", [b'<x tiff:Orientation="6"/>', b"<tiff:Orientation>6</"])
    def test_xmp_is_the_fallback_for_exif(self, text: bytes) -> None:
        xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + text)
        for exif, wanted in ((exif_data("<", MAKER), 6), (exif_data("<", (0x0112, 3, 3)), 3)):
            data = within(PLAIN_JPEG, xmp, segment(0xE1, exif))
            assert essential(data).orientation == wanted
            with Image.open(io.BytesIO(data)) as picture:
                assert picture.getexif()[0x0112] == wanted

    @pytest.mark.parametrize("form", ["JPEG", "PNG"])
    def test_pillow_never_sees_a_full_directory(self, form: str) -> None:
        """It would take ten milliseconds."""
        full = exif_data("<", *((0x8000 + tag, 3, 1) for tag in range(5000)))
        assert full not in essential(encoded(PICTURE, form, full)).data
        assert len(essential(encoded(PICTURE, form, full)).data) < len(full)


class TestBombs:
    """Data that keeps Pillow busy for up to ten seconds, or grows in it."""

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (within(PLAIN_JPEG, segment(0xFE, b"") * 4 * MIB), f"more than {MAX_SEGMENTS} parts"),
            (within(PLAIN_JPEG, b"\xff\xd0" * 8 * MIB), f"more than {MAX_SEGMENTS} parts"),
            (within(PLAIN_JPEG, segment(0xDB, b"\0" * 65 * 1000) * 200), "too many tables"),
            (within(PLAIN_JPEG, b"\xff\x00" * 8 * MIB), "damaged"),
            (within(PLAIN_JPEG, b"\xff\xe2\0\0" * 4 * MIB), f"more than {MAX_SEGMENTS} parts"),
            (within(PLAIN_JPEG, b"\xff\xdb\0\0" * 4 * MIB), "damaged"),
            (within(PLAIN_JPEG, b"\xff\xe2\xff\xff")[:-50], "damaged"),
            (PLAIN_JPEG[:100], "damaged"),
            (
                PLAIN_PNG[:33] + chunk(b"tEXt", b"a\0b") * MIB + PLAIN_PNG[33:],
                f"more than {MAX_CHUNKS} chunks",
            ),
        ],
        ids=[
            "comments",
            "markers",
            "tables",
            "escapes",
            "no size",
            "no size of tables",
            "cut",
            "cut tables",
            "texts",
        ],
    )
    def test_endless_segments_are_refused(self, data: bytes, why: str) -> None:
        with pytest.raises(PictureError, match=why):
            essential(data)

    @pytest.mark.parametrize(
        "data",
        [
            within(PLAIN_JPEG, b"\xff" * 16 * MIB),
            within(PLAIN_JPEG, NOTE, b"a" * 16 * MIB),
            within(PLAIN_JPEG, segment(0xED, b"Photoshop 3.0\0" + b"8BIM" * 16_000) * 200),
            within(PLAIN_JPEG, segment(0xE2, b"MPF\0" + b"a" * 65_000) * 200),
            within(PLAIN_JPEG, segment(0xE2, b"ICC_PROFILE\0\1\1" + b"a" * 65_000) * 200),
            PLAIN_PNG[:33] + chunk(b"zTXt", b"a" * 15 * MIB) + PLAIN_PNG[33:],
            PLAIN_PNG[:33] + chunk(b"eXIf", b"a" * 15 * MIB) + PLAIN_PNG[33:],
        ],
        ids=["fill", "rubbish", "resources", "previews", "profile", "text", "exif"],
    )
    def test_parts_without_pixels_are_dropped(self, data: bytes) -> None:
        left = essential(data).data
        assert len(left) < 10_000
        with Image.open(io.BytesIO(left)) as picture:
            assert picture.tobytes() in (pixels(PLAIN_JPEG), pixels(PLAIN_PNG))

    def test_only_the_first_metadata_is_kept(self) -> None:
        exif = segment(0xE1, ROTATED.tobytes())
        again = segment(0xE1, b"Exif\0\0" + b"a" * 65_000)
        assert essential(within(PLAIN_JPEG, exif, again * 200)) == essential(
            within(PLAIN_JPEG, exif)
        )


def check_whole(data: bytes) -> bytes:
    """The pixels of a file, or why they are not all there."""
    left = essential(data).data
    check_rows(left)
    return pixels(left)


def at_size(data: bytes, width: int, height: int) -> bytes:
    """A JPEG file whose header claims another size."""
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def scans_at(data: bytes) -> int:
    return data.index(b"\xff\xda") + 14


EOI, START = b"\xff\xd9", b"\xff\xda"
DAMAGE = (PictureError, OSError)  # Pillow raises OSError, for `preprocess` to translate
SOFT = Image.fromarray(noise(9, 9)).resize((90, 70))
FLAT = Image.new("RGB", (90, 70), (200, 100, 50))


class TestIncompleteJpeg:
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.97])
    @pytest.mark.parametrize("picture", [SOFT, FLAT], ids=["soft", "flat"])
    @pytest.mark.parametrize("end", [b"", EOI, EOI + b"more" + EOI])
    def test_a_scan_cut_short(self, picture: Image.Image, share: float, end: bytes) -> None:
        whole = jpeg(picture)
        start = scans_at(whole)
        cut = whole[: start + int((len(whole) - start) * share)]
        with pytest.raises(DAMAGE):
            check_whole(cut + end)

    @pytest.mark.parametrize("size", [(7000, 7000), (90, 96), (100, 70)])
    def test_header_larger_than_the_data(self, size: tuple[int, int]) -> None:
        with pytest.raises(DAMAGE):
            check_whole(at_size(jpeg(SOFT), *size))

    def test_progressive_header_larger_than_the_data(self) -> None:
        data = jpeg(SOFT, progressive=True).replace(b"\xff\xc2", b"\xff\xc0", 1)
        with pytest.raises(PictureError, match="too few bytes"):
            check_whole(at_size(data, 7000, 7000).replace(b"\xff\xc0", b"\xff\xc2", 1))

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    @pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 33), (16, 90), (90, 7)])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"quality": 1},
            {"quality": 100, "optimize": True},
            {"progressive": True},
            {"restart_marker_blocks": 3},
            {"subsampling": 0},
            {"subsampling": 1},
        ],
        ids=str,
    )
    def test_encoder_output_is_complete(
        self, mode: str, size: tuple[int, int], options: dict[str, int]
    ) -> None:
        for picture in (SOFT, FLAT):
            data = jpeg(picture.resize(size).convert(mode), **options)
            assert check_whole(data) == pixels(data)

    def test_complete_pixels_with_trailing_data_pass(self) -> None:
        """Whole pixels without their end, with something behind it, or in coarser steps."""
        whole = jpeg(SOFT)
        assert whole.endswith(EOI)
        for data in (whole[:-2], whole + b"a film" + START, whole + whole):
            assert check_whole(data) == pixels(whole)
        progressive = jpeg(SOFT, progressive=True)
        for last in range(2, progressive.count(START) + 1):  # as sent over a slow line
            coarse = START.join(progressive.split(START)[: last + 1])
            assert len(check_whole(coarse + EOI)) == 3 * 90 * 70

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    @pytest.mark.parametrize("end", [b"", EOI, EOI + bytes(300), EOI + START + b"more"])
    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_a_progressive_file_cut_in_its_first_scan(
        self, mode: str, end: bytes, share: float
    ) -> None:
        data = jpeg(SOFT.resize((300, 200)).convert(mode), progressive=True)
        start = scans_at(data)
        first = data[start : data.index(b"\xff\xc4", start)]
        with pytest.raises(PictureError, match="before its pixels"):
            check_whole(data[:start] + first[: int(len(first) * share)] + end)

    def test_bytes_after_the_end_are_not_pixels(self) -> None:
        data = jpeg(SOFT, progressive=True).replace(b"\xff\xc2", b"\xff\xc0", 1)
        more = at_size(data, 1900, 1900).replace(b"\xff\xc0", b"\xff\xc2", 1)
        with pytest.raises(PictureError, match="too few bytes"):
            check_whole(more + bytes(20_000))

    def test_components_in_separate_scans(self) -> None:
        whole = separate(SOFT)
        assert pixels(essential(whole).data) == pixels(whole)
        scans = whole[:-2].split(START)
        for left in (2, 3):
            for end in (b"", EOI, EOI + START + scans[-1]):
                with pytest.raises(PictureError, match="before its pixels"):
                    check_whole(START.join(scans[:left]) + end)

    @pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC9, 0xCA, 0xCF])
    def test_other_codings_are_refused(self, marker: int) -> None:
        data = jpeg(SOFT).replace(b"\xff\xc0", b"\xff%c" % marker, 1)
        with pytest.raises(PictureError, match="arithmetic-coded"):
            essential(data)

    def test_pixels_without_a_header(self) -> None:
        data = jpeg(SOFT)
        at = data.index(b"\xff\xc0")
        with pytest.raises(PictureError, match="no header"):
            essential(data[:at] + data[at + 19 :])

    def test_an_end_before_the_pixels(self) -> None:
        with pytest.raises(PictureError, match="ends before"):
            essential(within(jpeg(SOFT), EOI + b"\xff\xd8"))

    def test_endless_markers_are_refused(self) -> None:
        data = jpeg(SOFT, progressive=True)[:-2]
        with pytest.raises(PictureError, match=f"more than {MAX_SEGMENTS} parts"):
            essential(data + b"\xff\xfe\0\2" * MIB)


def separate(picture: Image.Image) -> bytes:
    """A baseline file in three scans, one for each component."""
    bands = [jpeg(band) for band in picture.convert("YCbCr").split()]
    frame, scan = (bands[0].index(mark) for mark in (b"\xff\xc0", START))
    head = struct.pack(">BHHB", 8, picture.height, picture.width, 3)
    components = b"".join(bytes((number, 0x11, 0)) for number in (1, 2, 3))
    made = bands[0][:frame] + segment(0xC0, head + components) + bands[0][frame + 13 : scan]
    for number, band in enumerate(bands, 1):
        made += segment(0xDA, bytes((1, number, 0, 0, 63, 0))) + band[scan + 10 : -2]
    return made + EOI


class TestIncompletePng:
    @pytest.mark.parametrize("interlaced", [False, True])
    @pytest.mark.parametrize(
        ("colour", "depths"),
        [(0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16))],
    )
    def test_rows_are_counted(self, colour: int, depths: tuple[int, ...], interlaced: bool) -> None:
        for depth in depths:
            for size in ((1, 1), (3, 2), (13, 21)):
                data = png(size, colour, depth, interlaced=interlaced)
                assert check_whole(data) == pixels(data)
                with pytest.raises(PictureError, match="fewer rows"):
                    check_whole(with_rows(data, -1))

    def test_a_checksum_is_checked(self) -> None:
        at = PLAIN_PNG.index(b"IEND") - 5
        with pytest.raises(PictureError, match="wrong checksum of IDAT"):
            essential(PLAIN_PNG[:at] + bytes([PLAIN_PNG[at] ^ 1]) + PLAIN_PNG[at + 1 :])

    @pytest.mark.parametrize("more", [b"", bytes(40_000)])
    def test_a_truncated_file(self, more: bytes) -> None:
        with pytest.raises(PictureError):
            essential(PLAIN_PNG[: PLAIN_PNG.index(b"IDAT") + 400] + more)

    def test_a_missing_palette(self) -> None:
        data = png((3, 3), colour=3, depth=8)
        at = data.index(b"PLTE") - 4
        how = PicturePreprocess(width=8, height=8, channels=1, mean=(0.0,), std=(1.0,))
        with pytest.raises(PictureError, match="no palette"):
            preprocess(data[:at] + data[at + 15 :], how)

    def test_a_file_without_a_leading_header(self) -> None:
        palette = chunk(b"PLTE", bytes(3))
        with pytest.raises(PictureError, match="begin"):
            essential(PLAIN_PNG[:8] + palette + PLAIN_PNG[8:])

    @pytest.mark.parametrize("at", [8, 33, PLAIN_PNG.index(b"IEND") - 4])
    def test_a_second_header(self, at: int) -> None:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20, 21, 8, 2, 0, 0, 0))
        with pytest.raises(PictureError, match="only one"):
            essential(PLAIN_PNG[:at] + header + PLAIN_PNG[at:])

    def test_invalid_compressed_data(self) -> None:
        head = PLAIN_PNG[: PLAIN_PNG.index(b"IDAT") - 4]
        with pytest.raises(PictureError, match="damaged"):
            check_whole(head + chunk(b"IDAT", b"no zlib") + chunk(b"IEND", b""))

    def test_complete_rows_with_extra_data_pass(self) -> None:
        """All rows are there, but more follow, or the end of the file is missing."""
        more, no_end = with_rows(PLAIN_PNG, 1000), PLAIN_PNG[: PLAIN_PNG.index(b"IEND") - 4]
        for data in (more, no_end, PLAIN_PNG[:-3], PLAIN_PNG + b"more"):
            assert check_whole(data) == pixels(PLAIN_PNG)

    def test_bomb_is_inflated_only_as_far_as_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inflated: list[int] = []

        def counted(inflater: Any, piece: bytes, enough: int) -> int:
            inflated.append(inflated_size(inflater, piece, enough))
            return inflated[-1]

        inflated_size = module._inflated_size
        monkeypatch.setattr(module, "_inflated_size", counted)
        check_rows(essential(with_rows(PLAIN_PNG, 10 * MIB)).data)
        assert 0 < sum(inflated) < MIB


def with_rows(data: bytes, more: int) -> bytes:
    """A PNG of one IDAT chunk with so many bytes of rows more; negative: fewer."""
    at = data.index(b"IDAT")
    size = int.from_bytes(data[at - 4 : at])
    rows = zlib.decompress(data[at + 4 : at + 4 + size])
    rows = rows + bytes(more) if more > 0 else rows[:more]
    return data[: at - 4] + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
