"""Models as the protocol describes them, and the names of their dtypes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from app.api.oip.metadata import model_config, model_metadata
from app.backends.selection import Preference, select
from app.codecs.choose import codec_for
from app.codecs.datatypes import DATATYPES, DTYPES, config_type
from app.registry.loaded_models import LoadedModel, LoadedModels, ReplicaStatus
from app.types import Device, ModelId
from models.manifest import Format, Manifest
from models.tensors import Dtype
from tests.unit.models.manifests import make_manifest, spec


def published(manifest: Manifest, *versions: int) -> LoadedModels:
    """The model `tiny` in these versions."""
    loaded = LoadedModels(None)
    for version in versions:
        selection = select(manifest, Preference())
        model = LoadedModel(ModelId("tiny", version), manifest, codec_for(manifest), selection)
        loaded.publish(model)
    return loaded


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_every_dtype_has_a_datatype_of_its_size(dtype: Dtype) -> None:
    datatype = DATATYPES[dtype]
    assert DTYPES[datatype] == dtype
    assert config_type(dtype) == f"TYPE_{datatype}"
    assert datatype == "BOOL" or datatype.endswith(str(8 * np.dtype(dtype).itemsize))


def test_bytes_have_names_of_their_own() -> None:
    assert (DATATYPES["bytes"], config_type("bytes")) == ("BYTES", "TYPE_STRING")


def test_model_metadata_lists_shapes_and_versions() -> None:
    manifest = make_manifest(
        [spec("a", "int64", (-1, -1, 3)), spec("b", "bool", (-1,))], [spec("y", "float16", (-1, 2))]
    )
    loaded = published(manifest, 10, 9)
    assert model_metadata(loaded.resolve("tiny", 9), loaded) == {
        "name": "tiny",
        "versions": ["9", "10"],
        "platform": "pytorch_torchscript",
        "inputs": [
            {"name": "a", "datatype": "INT64", "shape": [-1, -1, 3]},
            {"name": "b", "datatype": "BOOL", "shape": [-1]},
        ],
        "outputs": [{"name": "y", "datatype": "FP16", "shape": [-1, 2]}],
    }


@pytest.mark.parametrize(
    ("formats", "names"),
    [
        (("onnx", "openvino"), ("onnx_onnxv1", "onnxruntime_onnx", "onnxruntime")),
        (("torchscript", "onnx"), ("pytorch_torchscript", "pytorch_libtorch", "pytorch")),
    ],
)
def test_platform_is_the_format_that_the_model_was_made_in(
    formats: tuple[Format, ...], names: tuple[str, ...]
) -> None:
    manifest = make_manifest()
    (variant,) = manifest.variants.values()
    variants = {each: variant.model_copy(update={"format": each}) for each in formats}
    loaded = published(manifest.model_copy(update={"variants": variants, "plan": None}), 1)
    model = loaded.resolve("tiny")
    config = model_config(model, loaded, ())
    told = (model_metadata(model, loaded)["platform"], config["platform"], config["backend"])
    assert told == names


def test_replicas_are_grouped_by_device() -> None:
    loaded = published(make_manifest(), 1)
    replicas = [
        ReplicaStatus(f"{device}#{index}", device, "ready", None)
        for index, device in enumerate((Device("cuda", 1), Device("cpu"), Device("cuda", 1)))
    ]
    assert model_config(loaded.resolve("tiny"), loaded, replicas)["instance_group"] == [
        {"name": "tiny_0", "kind": "KIND_GPU", "count": 2, "gpus": [1]},
        {"name": "tiny_1", "kind": "KIND_CPU", "count": 1, "gpus": []},
    ]
