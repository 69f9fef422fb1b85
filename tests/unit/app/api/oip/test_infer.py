"""The heads of infer requests that are known."""

from __future__ import annotations

import gc
import weakref

from app.api.oip.infer import KnownHeads
from app.api.oip.requests import RAW
from app.api.oip.tensors import Layout
from app.codecs.choose import codec_for
from tests.unit.models.manifests import make_manifest

HEAD = b'{"inputs":[]}'


def test_known_heads_do_not_keep_models_alive() -> None:
    heads, layout = KnownHeads(), Layout(RAW, 8, ())
    first, second = codec_for(make_manifest()), codec_for(make_manifest())
    heads.put(first, HEAD, layout)
    assert heads.get(first, HEAD) is layout
    assert heads.get(second, HEAD) is None
    kept = weakref.ref(first)
    del first
    gc.collect()
    assert kept() is None
    assert heads.get(second, HEAD) is None
