"""The bytes of manifest.json and of its signature: whatever they are, a sentence comes of them."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.codecs.choose import codec_for
from app.errors import ArtifactInvalid
from models.codec_specs import ImageCodecSpec
from models.integrity import IntegrityError, Untrusted, read_artifact
from models.manifest import DIGEST_FILE, MANIFEST_FILE
from models.signatures import DOMAIN, TrustedKeys, fingerprint_of, signature_file
from tests.fuzz.codecs import COLOUR, GREY
from tests.fuzz.target import Finding, Target
from tests.unit.models.manifests import form, make_manifest, make_plan, make_variant, spec, steps

MAX_REFUSAL_CHARACTERS = 2000  # it is logged, and shown by /models
MOST_CHANGES = 8
RAW, CHANGED, SIGNATURE = b"\0", b"\1", b"\2"
# What stands in for a part of a manifest.
ODD: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 62, 1 << 63, 10**18, 1e308, -0.0, 0.5),
    *("", "a", "..", "../x", "\0", "\ud7ff", "AAAA", "=", "a" * 200, "float32", "int64", "bool"),
    *("tensor", "image", "script", "manifest.json", "softmax", "crop", "2026-01-01T00:00:00Z"),
    *([], {}, [-1], [-1, -1], [0], [-1, 0], [-1, -1, -1, 1], [1] * 40, [[]], {"a": {}}, [None]),
)


def case(data: bytes) -> None:
    """The file itself, changes to a good one (3 bytes say where, 1 says what), or a signature."""
    if data[:1] == RAW:
        _read(data[1:])
    elif data[:1] == SIGNATURE:
        _verify(data[1:])
    elif len(data) > 1:
        manifest = orjson.loads(_good()[data[1] % len(_good())])
        for at in range(2, min(len(data) - 3, 2 + 4 * MOST_CHANGES), 4):
            place, odd = int.from_bytes(data[at : at + 3], "little"), data[at + 3]
            _change(manifest, place, copy.deepcopy(ODD[odd % len(ODD)]))
        _read(orjson.dumps(manifest))


def _change(whole: Any, place: int, value: object) -> None:
    """Replace one part: the number says which of the parts, which of its parts, and so on."""
    container = whole
    while container:
        keys = list(container) if isinstance(container, dict) else range(len(container))
        place, at = divmod(place, len(keys))
        key = keys[at]
        if place == 0 or not isinstance(container[key], dict | list):
            container[key] = value
            return
        container = container[key]


def _read(text: bytes) -> None:
    folder = _folder()
    (folder / MANIFEST_FILE).write_bytes(text)
    digest = hashlib.sha256(text).hexdigest()
    (folder / DIGEST_FILE).write_text(f"{digest}  {MANIFEST_FILE}\n")
    try:
        intact = read_artifact(folder)
    except IntegrityError as error:
        if len(str(error)) > MAX_REFUSAL_CHARACTERS:
            raise Finding(f"a refusal of {len(str(error))} characters") from error
        return
    if intact.digest != digest:
        raise Finding(f"digest {intact.digest} of {digest}")
    orjson.dumps(intact.manifest.public())
    with contextlib.suppress(ArtifactInvalid):  # any file may be named as its tokenizer
        codec_for(intact.manifest, lambda name: (folder / name).read_bytes())


def _verify(signature: bytes) -> None:
    """Of all that may stand in a signature's file one thing is taken."""
    manifest, keys, right = _signed()
    try:
        keys.verify(manifest, signature)
    except Untrusted as error:
        if signature == right or len(str(error)) > MAX_REFUSAL_CHARACTERS:
            raise Finding(str(error)) from error
        return
    if signature != right:
        raise Finding(f"{signature!r} was taken")


@functools.cache
def _signed() -> tuple[bytes, TrustedKeys, bytes]:
    """A manifest, who is trusted, and what they signed it with."""
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    fingerprint = fingerprint_of(private.public_key())
    manifest = _good()[0]
    signature = signature_file(fingerprint, private.sign(DOMAIN + manifest))
    return manifest, TrustedKeys({fingerprint: private.public_key()}, {}), signature


@functools.cache
def _folder() -> Path:
    """In it a file that manifests may name, of the digest that they say."""
    folder = Path(tempfile.mkdtemp(prefix="torchlane-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "script.pt").write_bytes(b"weights")
    return folder


@functools.cache
def _good() -> tuple[bytes, ...]:
    """Manifests that are read, of every kind."""
    two = [spec("a", shape=(-1, -1, 2)), spec("b", "int64", (-1, 2))]
    variants = {"script": make_variant(optimized=True)}
    plan = make_plan({"float32": steps((4, form()), (64, form("script", True)))})
    made = [make_manifest(), make_manifest(two), make_manifest(variants=variants, plan=plan)]
    for how in (GREY, COLOUR):
        picture = spec("picture", shape=(-1, how.channels, how.height, how.width))
        made.append(make_manifest([picture], codec=ImageCodecSpec(preprocess=how)))
    digest = {"sha256": hashlib.sha256(b"weights").hexdigest(), "bytes": 7}
    files = [dict.fromkeys(each.files, digest) for each in made]
    return tuple(
        orjson.dumps({**each.model_dump(mode="json"), "files": file})
        for each, file in zip(made, files, strict=True)
    )


def seeds() -> Iterator[bytes]:
    """Good manifests, one change of each part, a good signature and bad ones."""
    right = _signed()[2]
    for signature in (b"", right, right[:-1], right.upper(), right.replace(b"0", b"1")):
        yield SIGNATURE + signature
    for at, text in enumerate(_good()):
        yield RAW + text
        yield bytes((CHANGED[0], at))
        for place in range(0, 60_000, 2777):
            yield bytes((CHANGED[0], at, *place.to_bytes(3, "little"), place % len(ODD)))


WORDS = (
    *(b'"schema_version":2', b'"model"', b'"inputs"', b'"outputs"', b'"shape"', b'"dtype"'),
    *(b'"data"', b'"golden"', b'"codec"', b'"kind"', b'"labels"', b'"scores"', b'"plan"'),
    *(b'"variants"', b'"files"', b'"sha256"', b'"bytes"', b'"float16"', b'"int8"'),
    *(b'"dimensions"', b'"least"', b'"most"', b'"minimum"', b'"maximum"', b'"free_max"'),
    *(b"null", b"true", b"[]", b"{}", b"[-1,-1]", b"1e999", b"NaN", b"-1", b"[" * 64, b'"\\ud800"'),
    *(
        b"1000000000000000000000000000000",
        b"9" * 400,
        b"0",
        b'"1"',
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
    ),
)
TARGET = Target(case, seeds, WORDS, max_bytes=4096)
