"""The targets by name; imported by name, for atheris instruments a module while it is imported."""

from __future__ import annotations

MODULES = {
    "json": "tests.fuzz.json_bodies",
    "raw": "tests.fuzz.raw_bodies",
    "npz": "tests.fuzz.npz_bodies",
    "numbers": "tests.fuzz.numbers",
    "grpc_infer": "tests.fuzz.grpc_infer",
    "infer": "tests.fuzz.infer",
    "forms": "tests.fuzz.forms",
    "pictures": "tests.fuzz.pictures",
    "sounds": "tests.fuzz.sounds",
    "text": "tests.fuzz.text",
    "wire": "tests.fuzz.wire",
    "manifests": "tests.fuzz.manifests",
    "cached": "tests.fuzz.cached",
    "frames": "tests.fuzz.frames",
    "tensors": "tests.fuzz.tensors",
}
# Wrong on purpose: what would a fuzzer be worth that finds nothing here?
PLANTED = {
    "planted-crash": "tests.fuzz.planted_crash",
    "planted-growth": "tests.fuzz.planted_growth",
}
