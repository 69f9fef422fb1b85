"""The codecs that are fuzzed: of every kind of input, dtype and shape that has a way of its own."""

from __future__ import annotations

from app.codecs.base import Codec
from app.codecs.choose import codec_for
from app.types import Item
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.tensors import Dimension, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

GREY = PicturePreprocess(width=6, height=5, channels=1, mean=(0.2,), std=(0.5,), polarity="auto")
COLOUR = PicturePreprocess(
    width=5,
    height=4,
    channels=3,
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.3, 0.4),
    fit="crop",
    resize_shorter=7,
)

SEQ = Dimension(name="seq", least=1, most=4)


class Thorough:
    """A codec without its fast way; see `app.codecs.base.Codec`."""

    def __init__(self, codec: Codec) -> None:
        self.manifest = codec.manifest
        self.media_types = codec.media_types
        self.item_types = codec.item_types
        self.batch_types = codec.batch_types
        self.most_marks = codec.most_marks
        self.most_lists = codec.most_lists
        self.optional = codec.optional
        self.takes_nan = codec.takes_nan
        self.places = codec.places
        self.files = codec.files
        self.parts = codec.parts
        self.chosen = codec.chosen
        self.decode = codec.decode
        self.decode_raw = codec.decode_raw
        self.item_schema = codec.item_schema
        self.decode_arrays = codec.decode_arrays
        self.finish = codec.finish
        self.check_top_k = codec.check_top_k
        self.check_pictures = codec.check_pictures
        self.encode = codec.encode
        self.encode_raw = codec.encode_raw

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        """Leaves every body to `decode`."""
        return None


def _tensor(*inputs: TensorSpec) -> Codec:
    return codec_for(make_manifest(inputs))


def _image(how: PicturePreprocess) -> Codec:
    picture = spec("picture", shape=(-1, how.channels, how.height, how.width))
    return codec_for(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))


IMAGES = (_image(GREY), _image(COLOUR))
# A case names its codec by its place here: add new ones at the end, or kept cases mean others.
CODECS = (
    _tensor(spec("x", "float32", (-1, 2, 3))),
    _tensor(spec("x", "float16", (-1, 4))),
    _tensor(spec("x", "float64", (-1,))),
    _tensor(spec("x", "int64", (-1, 3))),
    _tensor(spec("x", "int8", (-1, 2, 1))),
    _tensor(spec("x", "uint8", (-1,))),
    _tensor(spec("x", "bool", (-1, 3))),
    _tensor(spec("x", "float32", (-1, -1, 2))),
    _tensor(spec("a", "float32", (-1, -1, 2)), spec("b", "int64", (-1, 2))),
    *IMAGES,
    _tensor(TensorSpec(name="x", dtype="int64", shape=(-1, 3), minimum=-2, maximum=128)),
    _tensor(
        TensorSpec(name="a", dtype="int32", shape=(-1, -1, 2), dimensions=(SEQ,), minimum=0),
        TensorSpec(name="b", dtype="bool", shape=(-1, -1), dimensions=(SEQ,)),
    ),
    _tensor(TensorSpec(name="x", dtype="float32", shape=(-1, -1, -1), dimensions=(SEQ, SEQ))),
    codec_for(
        make_manifest(
            [spec("meta", shape=(-1, 2)), spec("picture", shape=(-1, 1, 5, 6))],
            codec=ImageCodecSpec(preprocess=GREY, input="picture"),
        )
    ),
)
THOROUGH = tuple(Thorough(codec) for codec in CODECS)
