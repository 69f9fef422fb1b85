"""All errors, each named for what broke; app/api/errors.py maps them to HTTP statuses.

    client --> api --> codec --> engine: cache, flight, queue --> replica --> backend --> model
           (1)    (2)       (3)                              (4)         (5)         (6)

    client --> api --> process of a handler --> models, as above
           (1)    (7)

TorchlaneError
|-- CallerError                the request is at fault; a retry does not help
|   |-- MalformedRequest       (1) the data received is not HTTP
|   |-- HttpVersionNotSupported (1) not HTTP/1.0 or 1.1
|   |-- NotImplementedInHttp   (1) a method or transfer coding that this server does not support
|   |-- HeadTooLarge           (1) the head of the request has too many bytes or headers
|   |-- HeadLate               (1) the head did not arrive in time
|   |-- UntrustedHost          (1) the Host header names another server
|   |-- Unauthorized           (1) no API key, or an unknown one
|   |-- Forbidden              (1) the API key does not allow this
|   |-- UnknownParameter       (1) the URL has a query parameter that the call does not have
|   |-- InvalidInput           (2) the payload does not fit the manifest
|   |-- UnsupportedMediaType   (1) no codec of this model reads this Content-Type
|   |-- UnsupportedContentCoding (1) the body's Content-Encoding is neither gzip nor deflate
|   |-- NotAcceptable          (1) the answer has no form that the Accept header allows
|   |-- PayloadTooLarge        (1) the request or its answer exceeds a size limit
|   `-- ModelNotFound          (2) no such model or version is loaded
|-- Abandoned                  (1) the client disconnected; the answer is not read
|-- Unavailable                a temporary failure; a retry may succeed
|   |-- RetryLater             the time for a retry is known
|   |   |-- RateLimited        (1) the caller is over its rate limit
|   |   |-- Overloaded         (3) the deadline cannot be met, or the queue is full
|   |   `-- AlreadyRecording   (1) another profile of this process is being recorded
|   |-- ModelNotReady          (3) the model is loading, or all its replicas are broken
|   |-- NotRecorded            (1) a profile could not be written to the temporary folder
|   |-- ShuttingDown           (3) the process is draining
|   |-- DeadlineExceeded       (3) the request's deadline has passed
|   `-- HandlerTimeout         (7) the request's time has passed in the code of a handler
|-- ItemFailed                 the outcome of one item; other items of its batch have their own
|   |-- BackendFailed          (6) the model, or its replicas, failed on this item
|   |-- NonFiniteOutput        (6) the model returned NaN or infinity
|   |-- InvalidItem            (2) the item does not fit the manifest, and fails alone
|   |-- HandlerOutputs         (7) the answer of a handler does not fit the outputs it declares
|   |-- HandlerFailed          (7) the code of a handler raised an exception, or cannot be loaded
|   |-- HandlerDied            (7) the process of a handler ended before it answered
|   `-- HandlerMemory          (7) the process of a handler was ended: it took too much memory
|-- BackendError               raised by a backend; never reaches a caller unchanged
|   |-- ModelError             (6) this batch made the model fail; the replica still works
|   |   `-- OutOfMemory        (6) the batch did not fit into the device's memory; a smaller one may
|   `-- ReplicaError           (5) this replica is broken; others may work
|       |-- DoesNotFit         (5) the model does not fit into the device's memory
|       |-- ReplicaHangs       (5) a forward does not return: its thread is given up
|       `-- DeviceLost         (5) the device is lost: the whole process must be restarted
`-- ArtifactInvalid            at load only: a file is missing, altered or unsupported
    |-- VersionChanged         the files differ from those that are served under the same number
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
    """The request uses an unsupported version of HTTP."""

    code = "http_version_not_supported"


class NotImplementedInHttp(CallerError):
    """The request needs a part of HTTP that this server does not support."""

    code = "not_implemented"


class HeadTooLarge(CallerError):
    """The head of a request, or the data around its body, has too many bytes or headers."""

    code = "head_too_large"


class HeadLate(CallerError):
    """The head of a request did not arrive in time."""

    code = "head_late"


class UntrustedHost(CallerError):
    """The Host header names a host that this server does not accept."""

    code = "untrusted_host"


class Unauthorized(CallerError):
    """No API key was sent, or an unknown one.

    Args:
        message: says which.
        wrong_key: whether a key was sent.
    """

    code = "unauthorized"

    def __init__(self, message: str, *, wrong_key: bool = False) -> None:
        super().__init__(message)
        self.wrong_key = wrong_key


class Forbidden(CallerError):
    """The API key does not allow this, or no key allows it."""

    code = "forbidden"


class UnknownParameter(CallerError):
    """The URL has a query parameter that the call does not have."""

    code = "unknown_parameter"


class InvalidInput(CallerError):
    """The payload does not fit the model."""

    code = "invalid_input"


class UnsupportedMediaType(CallerError):
    """The model does not read this Content-Type."""

    code = "unsupported_media_type"


class UnsupportedContentCoding(CallerError):
    """The server does not support the body's Content-Encoding."""

    code = "unsupported_content_coding"


class NotAcceptable(CallerError):
    """The answer has no form that the Accept header allows."""

    code = "not_acceptable"


class PayloadTooLarge(CallerError):
    """The request has too many bytes, items or pixels, or its answer has too many bytes."""

    code = "payload_too_large"


class ModelNotFound(CallerError):
    """No such model, or no such version of it."""

    code = "model_not_found"


class Abandoned(TorchlaneError):
    """The client has disconnected."""

    code = "abandoned"


class Unavailable(TorchlaneError):
    """A temporary failure; the same request may succeed later."""


class RetryLater(Unavailable):
    """A temporary failure, with a known time for a retry.

    Args:
        message: the reason.
        retry_after_s: seconds until the retry.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(RetryLater):
    """The caller is over its rate limit."""

    code = "rate_limited"


class Overloaded(RetryLater):
    """A limit, such as that of the queue, is reached, or the deadline cannot be met."""

    code = "overloaded"


class AlreadyRecording(RetryLater):
    """Another profile of this process is being recorded."""

    code = "already_recording"


class ModelNotReady(Unavailable):
    """The model is known but cannot answer yet."""

    code = "model_not_ready"


class NotRecorded(Unavailable):
    """A profile could not be written to the temporary folder."""

    code = "not_recorded"


class NotSaved(Unavailable):
    """The state of a release could not be written beside the models file."""

    code = "not_saved"


class ShuttingDown(Unavailable):
    """The process accepts no new work."""

    code = "shutting_down"


class DeadlineExceeded(Unavailable):
    """The request's deadline has passed."""

    code = "deadline_exceeded"


class HandlerTimeout(Unavailable):
    """The time of a request has passed while the code of a handler ran."""

    code = "handler_timeout"


class ItemFailed(TorchlaneError):
    """The outcome of one item."""


class BackendFailed(ItemFailed):
    """The model, or every replica that tried, failed on this item.

    Args:
        message: says which.
        details: for programs.
        reason: the model's own error text. It may contain paths, code or data, so callers see it
            only if a setting allows it.
    """

    code = "backend_failed"

    def __init__(self, message: str, details: Sequence[Detail] = (), reason: str = "") -> None:
        super().__init__(message, details)
        self.reason = reason


class NonFiniteOutput(ItemFailed):
    """The model returned NaN or infinity for this item."""

    code = "non_finite_output"


class InvalidItem(ItemFailed):
    """The item does not fit the model, in a batch whose caller wants the answers to the others."""

    code = "invalid_input"


class HandlerFailed(ItemFailed):
    """The code of a handler raised an exception, returned what cannot be sent, or cannot be loaded.

    Args:
        message: says which; of a handler that cannot be loaded, with the reason.
        reason: type and message of the exception of a request. It may contain paths, code or data,
            so callers see it only if a setting allows it.
    """

    code = "handler_failed"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class HandlerOutputs(ItemFailed):
    """The answer of a handler does not fit the outputs that its class declares."""

    code = "handler_outputs"


class HandlerDied(ItemFailed):
    """The process of a handler ended, or was ended, before it answered."""

    code = "handler_died"


class HandlerMemory(ItemFailed):
    """The process of a handler was ended because it took more memory than its limit."""

    code = "handler_memory"


class BackendError(TorchlaneError):
    """Base class of backends' errors; the class says whether batch or replica is at fault."""


class ModelError(BackendError):
    """The batch made the model fail."""


class OutOfMemory(ModelError):
    """The batch does not fit into the device's memory."""


class ReplicaError(BackendError):
    """The replica no longer works; another one may."""


class DoesNotFit(ReplicaError):
    """The device has too little memory to load a model."""


class ReplicaHangs(ReplicaError):
    """A forward, or a step of a load, did not return in time."""


class DeviceLost(ReplicaError):
    """The device's context is broken for the whole process (a sticky CUDA error)."""


class ArtifactInvalid(TorchlaneError):
    """An artifact is incomplete, altered, or in a format that this version does not support."""

    code = "artifact_invalid"


class VersionChanged(ArtifactInvalid):
    """The files of a version are not those that this server serves under its number.

    Args:
        message: says how they differ, and what to do.
        found: digest of the files; None if they fit no manifest.
    """

    def __init__(self, message: str, found: str | None = None) -> None:
        super().__init__(message)
        self.found = found


class VariantUnusable(ArtifactInvalid):
    """A variant that this machine must not run, such as one compiled for another processor."""
