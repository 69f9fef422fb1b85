"""Every error, named for what broke; app/api/errors.py has the statuses.

    client --> api --> codec --> engine: cache, flight, queue --> replica --> backend --> model
           (1)    (2)       (3)                              (4)         (5)         (6)

TorchlaneError
|-- CallerError                the request is at fault; a retry changes nothing
|   |-- MalformedRequest       (1) what came is not HTTP
|   |-- HttpVersionNotSupported (1) not HTTP/1.0 or 1.1
|   |-- NotImplementedInHttp   (1) a method or transfer coding that this server does not have
|   |-- HeadTooLarge           (1) more bytes or headers than the head of a request may have
|   |-- HeadLate               (1) the head did not come in time
|   |-- UntrustedHost          (1) the Host header names another server
|   |-- Unauthorized           (1) no API key, or an unknown one
|   |-- Forbidden              (1) the API key does not allow this
|   |-- InvalidInput           (2) the payload does not fit the manifest
|   |-- UnsupportedMediaType   (1) no codec of this model reads this Content-Type
|   |-- UnsupportedContentCoding (1) the body's Content-Encoding is neither gzip nor deflate
|   |-- NotAcceptable          (1) the answer cannot be written as the Accept header asks
|   |-- PayloadTooLarge        (1) more than one request, or its answer, may hold
|   `-- ModelNotFound          (2) no such model or version is loaded
|-- Abandoned                  (1) the client disconnected; the answer is not read
|-- Unavailable                not now; worth a retry
|   |-- RetryLater             at a known time
|   |   |-- RateLimited        (1) the caller is over its rate limit
|   |   |-- Overloaded         (3) the deadline cannot be met, or the queue is full
|   |   `-- AlreadyRecording   (1) another profile of this process is being made
|   |-- ModelNotReady          (3) the model is loading, or none of its replicas works
|   |-- ShuttingDown           (3) the process is draining
|   `-- DeadlineExceeded       (3) the request's deadline has passed
|-- ItemFailed                 the outcome of one item; its batch-mates have their own
|   |-- BackendFailed          (6) the model failed on this item, or its replicas did
|   `-- NonFiniteOutput        (6) the model answered NaN or infinity
|-- BackendError               raised by a backend; never reaches a caller as it is
|   |-- ModelError             (6) this batch made the model fail; the replica still works
|   |   `-- OutOfMemory        (6) it did not fit into the device's memory; a smaller one may
|   `-- ReplicaError           (5) this replica does not work; others may
|       |-- ReplicaHangs       (5) a forward does not return: its thread is abandoned
|       `-- DeviceLost         (5) the device is lost: the whole process must be restarted
`-- ArtifactInvalid            at load only: a file is missing, altered or unsupported
    `-- VariantUnusable        this machine cannot or must not run the variant; others may work
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

Detail = Mapping[str, str | int | float]


class TorchlaneError(Exception):
    """Base class; `str()` is a sentence for the caller, `details` is for programs."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, details: Sequence[Detail] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class CallerError(TorchlaneError):
    """The request is at fault."""


class MalformedRequest(CallerError):
    """The data on the connection is not HTTP."""

    code = "bad_request"


class HttpVersionNotSupported(CallerError):
    """The request is of another version of HTTP."""

    code = "http_version_not_supported"


class NotImplementedInHttp(CallerError):
    """The request needs a part of HTTP that this server does not have."""

    code = "not_implemented"


class HeadTooLarge(CallerError):
    """The head of a request, or the data around its body, has too many bytes or headers."""

    code = "head_too_large"


class HeadLate(CallerError):
    """The head of a request did not come in time."""

    code = "head_late"


class UntrustedHost(CallerError):
    """The Host header names no host that this server accepts."""

    code = "untrusted_host"


class Unauthorized(CallerError):
    """No API key was sent, or an unknown one.

    Args:
        message: which of the two.
        wrong_key: whether one was sent.
    """

    code = "unauthorized"

    def __init__(self, message: str, *, wrong_key: bool = False) -> None:
        super().__init__(message)
        self.wrong_key = wrong_key


class Forbidden(CallerError):
    """The API key does not allow this, or no key would."""

    code = "forbidden"


class InvalidInput(CallerError):
    """The payload does not fit the model."""

    code = "invalid_input"


class UnsupportedMediaType(CallerError):
    """The model does not read this Content-Type."""

    code = "unsupported_media_type"


class UnsupportedContentCoding(CallerError):
    """The body's Content-Encoding is not read."""

    code = "unsupported_content_coding"


class NotAcceptable(CallerError):
    """The answer cannot be written as the Accept header asks."""

    code = "not_acceptable"


class PayloadTooLarge(CallerError):
    """The request has too many bytes, items or pixels, or its answer too many bytes."""

    code = "payload_too_large"


class ModelNotFound(CallerError):
    """No such model, or no such version of it."""

    code = "model_not_found"


class Abandoned(TorchlaneError):
    """The client has disconnected."""

    code = "abandoned"


class Unavailable(TorchlaneError):
    """Not now; the same request may succeed later."""


class RetryLater(Unavailable):
    """Not now, but at a known time.

    Args:
        message: why.
        retry_after_s: seconds until then.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(RetryLater):
    """The caller is over its rate limit."""

    code = "rate_limited"


class Overloaded(RetryLater):
    """The queue is full or the deadline cannot be met; a retry succeeds once the queue is done."""

    code = "overloaded"


class AlreadyRecording(RetryLater):
    """Another profile of this process is being made."""

    code = "already_recording"


class ModelNotReady(Unavailable):
    """The model is known but cannot answer yet."""

    code = "model_not_ready"


class ShuttingDown(Unavailable):
    """The process takes no new work."""

    code = "shutting_down"


class DeadlineExceeded(Unavailable):
    """The request's deadline has passed."""

    code = "deadline_exceeded"


class ItemFailed(TorchlaneError):
    """The outcome of one item."""


class BackendFailed(ItemFailed):
    """The model, or every replica that tried, failed on this item.

    Args:
        message: which of the two.
        details: for programs.
        reason: the model's own error text. It may hold paths, code or data, so callers see it only
            where that is configured.
    """

    code = "backend_failed"

    def __init__(self, message: str, details: Sequence[Detail] = (), reason: str = "") -> None:
        super().__init__(message, details)
        self.reason = reason


class NonFiniteOutput(ItemFailed):
    """The model answered NaN or infinity for this item."""

    code = "non_finite_output"


class BackendError(TorchlaneError):
    """Base of errors of backends, whose class says whose fault a failed run was."""


class ModelError(BackendError):
    """The batch made the model fail."""


class OutOfMemory(ModelError):
    """The batch does not fit into the device's memory."""


class ReplicaError(BackendError):
    """The replica no longer works; another one may."""


class DoesNotFit(ReplicaError):
    """There is not enough memory to load a model."""


class ReplicaHangs(ReplicaError):
    """A forward, or a step of a load, did not return in time."""


class DeviceLost(ReplicaError):
    """The device's context is broken for the whole process (a sticky CUDA error)."""


class ArtifactInvalid(TorchlaneError):
    """An artifact is incomplete, altered, or in a form that this version does not read."""

    code = "artifact_invalid"


class VariantUnusable(ArtifactInvalid):
    """A variant that this machine must not run, such as one compiled for another processor."""
