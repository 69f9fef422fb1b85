"""Every kind of codec that a manifest can ask for is there."""

from __future__ import annotations

import typing

import pytest

from app.codecs.choose import CODECS, codec_for
from app.codecs.image import ImageCodec
from app.codecs.tensor import TensorCodec
from models.codec_specs import CodecSpec, ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from tests.unit.models.manifests import make_manifest, spec

PICTURE = ImageCodecSpec(
    preprocess=PicturePreprocess(width=4, height=4, channels=1, mean=(0.0,), std=(1.0,))
)


@pytest.mark.parametrize(
    ("codec", "made"), [(TensorCodecSpec(), TensorCodec), (PICTURE, ImageCodec)]
)
def test_manifest_chooses_the_codec(codec: CodecSpec, made: type) -> None:
    manifest = make_manifest([spec("x", shape=(-1, 1, 4, 4))], codec=codec)
    chosen = codec_for(manifest)
    assert type(chosen) is made
    assert chosen.manifest is manifest


def test_every_kind_in_the_schema_has_a_codec() -> None:
    kinds = typing.get_args(typing.get_args(CodecSpec)[0])
    assert {kind.model_fields["kind"].default for kind in kinds} == set(CODECS)
