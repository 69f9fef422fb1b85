"""Schemas of answers and errors, for the OpenAPI document and for the small routes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from models.tensors import TensorSpec

State = Literal["loading", "ready", "cold", "draining", "unloaded", "failed"]


class ErrorBody(BaseModel):
    """The shape of every error."""

    error: str = Field(description="a sentence that says what to do")
    code: str = Field(description="for programs; docs/errors.md lists all codes")
    request_id: str
    details: list[dict[str, str | int | float]] = Field(description="for example, an item's index")
    retry_after_ms: float = Field(
        default=0,
        description="only with `overloaded` and `rate_limited`: estimated time until the queued "
        "work is done or the rate limit allows the request; Retry-After is the same, rounded up to "
        "whole seconds",
    )


CUT: dict[str, int] = Field(
    default={},
    description="only for a text that was cut off: the tokens used (`tokens`) and left out (`cut`)",
)


class PictureGeometry(BaseModel):
    """How the caller's picture maps to the model's input, in pixels.

    A point (x, y) of the picture is at (x * scale[0] + offset[0], y * scale[1] + offset[1]) there.
    """

    width: int = Field(description="of the picture, upright by its EXIF orientation")
    height: int
    scale: list[float] = Field(min_length=2, max_length=2, description="across and down")
    offset: list[float] = Field(
        min_length=2, max_length=2, description="negative if the model sees only the middle"
    )


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _picture() -> Any:
    """A field that only answers to pictures have, with boxes or masks in their pixels."""
    return Field(
        default=None,
        json_schema_extra=_without_default,
        description="only if outputs are declared as boxes or masks, and the item is a picture: "
        "these outputs are in its pixels",
    )


class LabelledPrediction(BaseModel):
    """A prediction of a model with labels."""

    label: str
    score: float
    scores: list[float] = Field(
        description="one per label, in the manifest's order; with top_k the highest, descending"
    )
    labels: list[str] = Field(default=[], description="only with top_k: the labels of the scores")
    indices: list[int] = Field(
        default=[], description="only with top_k: positions of the labels in the manifest"
    )
    outputs: dict[str, JsonValue] = Field(
        default={}, description="other outputs, if any: output name -> nested numbers"
    )
    details: dict[str, int] = CUT
    image: PictureGeometry | SkipJsonSchema[None] = _picture()


class TensorPrediction(BaseModel):
    """A prediction of a model without labels."""

    outputs: dict[str, JsonValue] = Field(
        description="output name -> nested numbers; with top_k the first output has only its "
        "highest numbers, descending; with pictures, pictures are PNG files in base64"
    )
    indices: list[int] = Field(
        default=[], description="only with top_k: positions of these numbers in the whole output"
    )
    labels: list[str] = Field(
        default=[], description="only for rows with classes, such as boxes: the label of each row"
    )
    details: dict[str, int] = CUT
    image: PictureGeometry | SkipJsonSchema[None] = _picture()


class Span(BaseModel):
    """Adjacent tokens with the same label."""

    label: str
    score: float = Field(description="the mean score of its tokens")
    start: int = Field(description="index of the first character, from 0")
    end: int = Field(description="index after the last character")
    text: str


class SpansPrediction(BaseModel):
    """The spans that a token classifier found in a text."""

    spans: list[Span] = Field(description="in the order of the text, without the label O")
    outputs: dict[str, JsonValue] = Field(default={}, description="the other outputs, if any")
    details: dict[str, int] = CUT


class FailedItem(BaseModel):
    """The entry of an item on which the model failed, or with `partial` of an invalid one."""

    error: str
    code: Literal["backend_failed", "non_finite_output", "invalid_input"]
    details: list[dict[str, str | int | float]] = Field(
        default=[],
        description="`model_error`, if TORCHLANE_SHOW_MODEL_ERRORS is set; of an invalid item, the "
        "numbers that are out of bounds",
    )


class PredictAnswer(BaseModel):
    """One prediction, and the version that made it."""

    model_config = ConfigDict(protected_namespaces=())

    model: str
    version: int
    prediction: LabelledPrediction | SpansPrediction | TensorPrediction


class BatchPredictAnswer(BaseModel):
    """One prediction per input, in the same order."""

    model_config = ConfigDict(protected_namespaces=())

    model: str
    version: int
    failed: int = Field(default=0, ge=0, description="failed items; only with `partial`")
    predictions: list[LabelledPrediction | SpansPrediction | TensorPrediction | FailedItem]


class Ping(BaseModel):
    """The answer of a platform's health check, in TorchServe's form."""

    status: Literal["Healthy", "Unhealthy"]


class Health(BaseModel):
    """State of the process."""

    status: Literal["live", "ready", "not_ready"]
    reasons: list[str] = Field(default=[], description="why it is not ready")
    warnings: list[str] = Field(default=[], description="settings that do not fit the repository")


class VersionState(BaseModel):
    """One version that the server knows."""

    version: int
    state: State
    problem: str | None = None
    step: str | None = Field(None, description="the current step while it loads")
    stage: Literal["verify", "load", "warm", "prove"] | None = Field(
        None, description="the stage of loading that this step belongs to"
    )
    progress: float | None = Field(
        None, ge=0, le=1, description="fraction of the steps done, once their number is known"
    )
    seconds: float | None = Field(None, description="how long it has been loading")
    left_s: float | None = Field(
        None, description="on demand: seconds until it is expected to be loaded, if known"
    )
    memory_bytes: int | None = Field(
        None, description="memory that it takes in the answering process; null: it is not loaded"
    )
    idle_s: float | None = Field(
        None, description="on demand: seconds since a request last needed it"
    )


class ServedStep(BaseModel):
    """The form that runs batches of up to `up_to` items."""

    up_to: int | None = Field(description="null: any size")
    form: str


class ServedPlan(BaseModel):
    """Which form runs which batch size on a replica."""

    steps: list[ServedStep]
    measured_on: str | None = Field(description="the processor; null: there was no choice")
    measured_by: Literal["export", "server"] | None
    median_us: dict[str, dict[int, float]] = Field(
        description="measured by the server: form -> batch size -> microseconds of a forward"
    )


class ReplicaInfo(BaseModel):
    """One replica: a thread on a device."""

    name: str
    device: str
    state: str = Field(description="ready, loading (it lacks this model), sick or closed")
    plan: ServedPlan | None = Field(description="what it runs; null while it lacks this model")


class ModelSettings(BaseModel):
    """Settings of a model: from the models file, the server's settings and the artifact."""

    max_batch_size: int
    batch_wait_ms: float
    queue_limit_items: int
    queue_limit_bytes: int
    timeout_ms: float
    devices: list[str] | None = Field(description="null: all devices of the server")
    replicas: int | None = Field(description="null: all replicas on these devices")
    variant: str | None
    precision: str | None = Field(description="null: the artifact's choice")
    cache: bool
    restricted: bool = Field(description="whether only some of the API keys may call it")
    required: bool = Field(description="whether the server is not ready without it")


class VersionWeight(BaseModel):
    """A version's weight in requests that name no version."""

    version: int
    weight: float = Field(description="as the models file sets it")
    share: float = Field(description="of the requests, at present; 0 if it is not served")


class VersionWeights(BaseModel):
    """How the models file divides requests that name no version."""

    sticky: str = Field(description="what requests have in common to get the same version")
    versions: list[VersionWeight]
    problem: str | None = Field(description="which weights have no effect, and why")


class ModelRelease(BaseModel):
    """A release in steps to a version, which the models file sets."""

    to: int = Field(description="the new version")
    old: int | None = Field(description="the version with the rest; null before it has begun")
    state: Literal["waiting", "running", "paused", "rolled_back", "completed"]
    step: int = Field(description="its number, from 1; 0 before it has begun")
    steps: list[float] = Field(description="per cent of the requests that name no version")
    percent: float = Field(description="what the new version gets now")
    seconds: float | None = Field(description="since when this step or state lasts")
    reason: str | None = Field(description="why it was rolled back")
    problem: str | None = Field(description="why it does not go on")


class ModelShadow(BaseModel):
    """A version that computes copies of what other versions compute."""

    version: int
    share: float = Field(description="of the items that other versions compute")
    problem: str | None = Field(description="why it computes none")


class ComparedShadow(ModelShadow):
    """A shadow, and how its answers compare."""

    compared: int = Field(description="number of items since the server's start, in all processes")
    agreement: float | None = Field(
        description="share of them with the same answer or label; null: none was compared"
    )


class OipTensor(BaseModel):
    """An input of a request of the Open Inference Protocol."""

    name: str
    datatype: str
    shape: list[int]
    data: list[JsonValue] = Field(
        [], description="the numbers, flat; left out if the item has more than 64 KiB"
    )


class OipRequest(BaseModel):
    """The body of POST /v2/models/NAME/infer."""

    inputs: list[OipTensor]


class DifferingInput(BaseModel):
    """An input for which a shadow gave another answer."""

    at: float = Field(description="when, in seconds since 1970")
    result: Literal["differs", "failed"]
    version: int = Field(description="the served version")
    prediction: dict[str, JsonValue] | None = Field(
        description="its answer, as /predict writes it; null: larger than 64 KiB"
    )
    shadow_prediction: dict[str, JsonValue] | None = Field(
        description="that of the shadow, or its error"
    )
    request: OipRequest = Field(description="the input, to be sent again")


class ShadowInputs(ModelShadow):
    """What a shadow has kept."""

    keep: int = Field(description="maximum number of inputs; 0: none is kept")
    differing: list[DifferingInput] = Field(description="the newest first")


class ModelSummary(BaseModel):
    """A model in the repository, and its loaded versions."""

    name: str
    kind: Literal["model", "handler"] = Field(
        "model", description="a handler is Python code around models; only its own calls reach it"
    )
    default: bool = Field(description="whether /predict means this model")
    state: State = Field(description="ready if any version is ready")
    version: int | None = Field(
        description="the version for requests that name none; with weights, that with the largest"
    )
    weights: VersionWeights | None = Field(
        None, description="of versions in requests that name none; null: `version` gets all"
    )
    release: ModelRelease | None = Field(
        None, description="the release that divides these requests; null: there is none"
    )
    shadow: ComparedShadow | None = Field(
        None, description="the version that computes copies, for comparison; null: none does"
    )
    versions: list[VersionState]
    problem: str | None = Field(
        None, description="why the server cannot list the versions of the model's folder"
    )
    modelName: str = Field(description="the name again, for TorchServe's clients")
    modelUrl: str = Field(description="the artifact in the repository, for TorchServe's clients")


class RequestSize(BaseModel):
    """Limits of one request."""

    items: int
    body_bytes: int


class ModelInfo(ModelSummary):
    """What a caller needs to know; null or empty if no version is loaded."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    limits: RequestSize
    description: str | None = None
    precision: str | None = Field(None, description="the precision of every answer")
    codec: Literal["tensor", "image", "audio", "text"] | None = Field(
        None, description="what an item is"
    )
    media_types: list[str] = Field([], description="accepted Content-Types of a body")
    inputs: list[TensorSpec] = Field([], description="axis 0 is the batch, -1 a free dimension")
    outputs: list[TensorSpec] = []
    labels: list[str] | None = Field(
        None, description="of the first output; null: predictions have `outputs` instead"
    )
    calls: list[str] = Field([], description="the models that a handler calls")
    request_schema: dict[str, JsonValue] | None = Field(
        None, description="JSON schema of the bodies that a handler takes; null: any"
    )
    streams: bool = Field(False, description="whether a handler yields its answer")
    example: JsonValue = Field(None, description="one item in JSON; null: too large to show")


class ModelDetails(ModelInfo):
    """With `full=true`: also what runs, where, and how it was made and verified."""

    variant: str | None = Field(description="the only variant served; null: a plan decides")
    signed_by: str | None = Field(
        description="fingerprint of the trusted key that signed the loaded version; null if the "
        "server requires no signatures"
    )
    settings: ModelSettings | None = Field(description="null while no version is loaded")
    replicas: list[ReplicaInfo]
    manifest: dict[str, JsonValue] | None = Field(
        description="the public part of the loaded version's manifest"
    )


class ModelList(BaseModel):
    """All models; with `full=true` all details of each."""

    models: list[ModelDetails | ModelSummary]


class VersionName(BaseModel):
    """One version of one model."""

    model: str
    version: int


class FailedVersion(VersionName):
    """A version that could not be loaded."""

    problem: str = Field(description="the reason; versions served before still serve")


class ChangesAnswer(BaseModel):
    """Changes that an admin call made in the answering process."""

    loaded: list[VersionName] = Field(description="versions that serve now")
    retired: list[VersionName] = Field(
        description="versions that no longer serve; all their requests were answered"
    )
    failed: list[FailedVersion]
