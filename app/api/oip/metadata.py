"""Descriptions of the server and its models in the protocol's form.

Plain dicts, for REST and gRPC. Outputs are described as the codec has finished them: a softmax
does not change name, dtype or shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.codecs.datatypes import DATATYPES, config_type
from app.registry.loaded_models import LoadedHandler, LoadedModel, LoadedModels, ReplicaStatus
from app.serving.lifecycle import Lifecycle
from app.types import Device
from models.codec_specs import ImageCodecSpec
from models.tensors import TensorSpec

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)


class Platform(NamedTuple):
    """The protocol's name for the format of a model, and Triton's names for it and its backend."""

    name: str
    triton: str
    backend: str


TORCH = Platform("pytorch_torchscript", "pytorch_libtorch", "pytorch")
PYTHON = "python"  # of handlers
ONNX = Platform("onnx_onnxv1", "onnxruntime_onnx", "onnxruntime")


class ServerMetadata(TypedDict):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    """An input or output; -1 in its shape is the batch or a free axis."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """A model and its loaded versions."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ConfigInput(TypedDict):
    """An input; `dims` has no batch axis."""

    name: str
    data_type: str
    format: str
    dims: list[int]
    is_shape_tensor: bool
    optional: bool


class ConfigOutput(TypedDict):
    """An output; `dims` has no batch axis."""

    name: str
    data_type: str
    dims: list[int]
    is_shape_tensor: bool


class SpecificVersions(TypedDict):
    """The versions that are served."""

    versions: list[int]


class ConfigVersionPolicy(TypedDict):
    """Which versions are served."""

    specific: SpecificVersions


class InstanceGroup(TypedDict):
    """The replicas on one device."""

    name: str
    kind: str
    count: int
    gpus: list[int]


class DynamicBatching(TypedDict):
    """How batches are formed."""

    preferred_batch_size: list[int]
    max_queue_delay_microseconds: int


class ResponseCache(TypedDict):
    """Whether predictions are cached."""

    enable: bool


class TransactionPolicy(TypedDict):
    """Whether a request may have several answers, as handlers that yield give them."""

    decoupled: bool


class ConfigParameter(TypedDict):
    """A value for which Triton's configuration has no field."""

    string_value: str


class ModelConfig(TypedDict):
    """A model in the form of Triton's ModelConfig, with the fields that apply."""

    name: str
    platform: str
    backend: str
    version_policy: ConfigVersionPolicy
    max_batch_size: int
    input: list[ConfigInput]
    output: list[ConfigOutput]
    instance_group: list[InstanceGroup]
    dynamic_batching: DynamicBatching
    model_transaction_policy: TransactionPolicy
    response_cache: ResponseCache
    parameters: dict[str, ConfigParameter]


def server_metadata(version: str) -> ServerMetadata:
    """The server, with the extensions that it supports."""
    return {"name": "torchlane", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(model: LoadedModel | LoadedHandler, loaded: LoadedModels) -> ModelMetadata:
    """A loaded model, whose pictures are described as the arrays that they become, or a handler."""
    if isinstance(model, LoadedHandler):
        platform, outputs = PYTHON, model.manifest.outputs
    else:
        platform, outputs = _platform(model).name, model.manifest.shown_outputs
    return {
        "name": model.id.name,
        "versions": [str(number) for number in _versions(model, loaded)],
        "platform": platform,
        "inputs": [_tensor(spec) for spec in model.manifest.inputs],
        "outputs": [_tensor(spec) for spec in outputs],
    }


def config_of(
    model: LoadedModel | LoadedHandler, lifecycle: Lifecycle, max_items: int
) -> ModelConfig:
    """The configuration of a loaded model, or of a handler that declares its tensors.

    Args:
        model: what is described.
        lifecycle: knows the replicas, and the other versions.
        max_items: of one request, all of which a handler gets together.
    """
    if isinstance(model, LoadedHandler):
        return _handler_config(model, lifecycle.loaded, max_items)
    return model_config(model, lifecycle.loaded, lifecycle.replica_states(model.id))


def model_config(
    model: LoadedModel, loaded: LoadedModels, replicas: Iterable[ReplicaStatus]
) -> ModelConfig:
    """The configuration of a loaded model with these replicas."""
    manifest, settings = model.manifest, model.settings
    platform = _platform(model)
    codec = manifest.codec
    picture = codec.input_of(manifest.inputs) if isinstance(codec, ImageCodecSpec) else None
    devices = Counter(each.device for each in replicas)
    return {
        "name": model.id.name,
        "platform": platform.triton,
        "backend": platform.backend,
        "version_policy": {"specific": {"versions": _versions(model, loaded)}},
        "max_batch_size": model.max_batch_size,
        "input": [_input(spec, is_picture=spec is picture) for spec in manifest.inputs],
        "output": [_output(spec) for spec in manifest.shown_outputs],
        "instance_group": [
            _instance_group(f"{model.id.name}_{index}", device, count)
            for index, (device, count) in enumerate(devices.items())
        ],
        "dynamic_batching": {
            "preferred_batch_size": [model.max_batch_size],
            "max_queue_delay_microseconds": round(settings.batch_wait_s * 1e6),
        },
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": settings.cache},
        "parameters": {
            "codec": {"string_value": manifest.codec.kind},
            "precision": {"string_value": model.selection.precision},
        },
    }


def _handler_config(handler: LoadedHandler, loaded: LoadedModels, max_items: int) -> ModelConfig:
    """The configuration of a handler, whose processes are its instances."""
    manifest = handler.manifest
    processes = handler.pool.load().processes
    return {
        "name": handler.id.name,
        "platform": "",  # as Triton's Python backend
        "backend": PYTHON,
        "version_policy": {"specific": {"versions": _versions(handler, loaded)}},
        "max_batch_size": max_items,
        "input": [_input(spec) for spec in manifest.inputs],
        "output": [_output(spec) for spec in manifest.outputs],
        "instance_group": [_instance_group(f"{handler.id.name}_0", Device("cpu"), processes)],
        "dynamic_batching": {
            "preferred_batch_size": [manifest.limits.max_batch_size],
            "max_queue_delay_microseconds": 0,
        },
        "model_transaction_policy": {"decoupled": manifest.streams},
        "response_cache": {"enable": False},
        "parameters": {},
    }


def _input(spec: TensorSpec, *, is_picture: bool = False) -> ConfigInput:
    return {
        "name": spec.name,
        "data_type": config_type(spec.dtype),
        "format": "FORMAT_NCHW" if is_picture else "FORMAT_NONE",
        "dims": list(spec.item_shape),
        "is_shape_tensor": False,
        "optional": False,
    }


def _output(spec: TensorSpec) -> ConfigOutput:
    return {
        "name": spec.name,
        "data_type": config_type(spec.dtype),
        "dims": list(spec.item_shape),
        "is_shape_tensor": False,
    }


def _versions(model: LoadedModel | LoadedHandler, loaded: LoadedModels) -> list[int]:
    return sorted(each.version for each in loaded.versions(model.id.name))


def _tensor(spec: TensorSpec) -> TensorMetadata:
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": list(spec.shape)}


def _instance_group(name: str, device: Device, count: int) -> InstanceGroup:
    on_cpu = device.kind == "cpu"
    return {
        "name": name,
        "kind": "KIND_CPU" if on_cpu else "KIND_GPU",
        "count": count,
        "gpus": [] if on_cpu else [device.index],
    }


def _platform(model: LoadedModel) -> Platform:
    """The platform of a model's variants: ONNX only if none of them is torch's."""
    formats = {variant.format for variant in model.manifest.variants.values()}
    return TORCH if formats & {"torchscript", "aotinductor"} else ONNX
