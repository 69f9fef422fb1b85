"""Everything that can go wrong, named for what broke; app/api/errors.py knows the statuses.

    client --> api --> codec --> engine: cache, flight, queue --> replica --> backend --> model
           (1)    (2)       (3)                              (4)         (5)         (6)

TorchlaneError
|-- CallerError                the request is at fault; asking again changes nothing
|   |-- MalformedRequest       (1) what came is not HTTP
|   |-- HeadTooLarge           (1) more bytes or headers than the head of a request may have
|   |-- HeadLate               (1) the head did not come in time
|   |-- UntrustedHost          (1) the Host header names another server
|   |-- Unauthorized           (1) no API key, or none that is known
|   |-- Forbidden              (1) the API key does not allow this
|   |-- InvalidInput           (2) the payload is not what the manifest takes
|   |-- UnsupportedMediaType   (1) no codec of this model reads this Content-Type
|   |-- NotAcceptable          (1) the answer cannot be written as the Accept header asks
|   |-- PayloadTooLarge        (1) more than one request, or its answer, may hold
|   `-- ModelNotFound          (2) no such model or version is loaded
|-- Abandoned                  (1) the caller went away; nobody reads the answer
|-- Unavailable                not now; worth a retry
|   |-- RetryLater             and it is known when
|   |   |-- RateLimited        (1) the caller has asked for more than it may in this time
|   |   `-- Overloaded         (3) it would not be ready in time, or the queue is full
|   |-- ModelNotReady          (3) the model is loading, or none of its replicas works
|   |-- ShuttingDown           (3) the process drains
|   `-- DeadlineExceeded       (3) the caller's time is up
|-- ItemFailed                 the outcome of one item; its batch-mates have their own
|   |-- BackendFailed          (6) the model failed on this item, or its replicas did
|   `-- NonFiniteOutput        (6) the model answered NaN or infinity
|-- BackendError               what a backend raises; never reaches a caller as it is
|   |-- ModelError             (6) this batch made the model fail; the replica is well
|   |   `-- OutOfMemory        (6) it did not fit into the device's memory; a smaller one may
|   `-- ReplicaError           (5) this replica does not work; others may
|       |-- ReplicaHangs       (5) a forward does not come back: the thread is given up
|       `-- DeviceLost         (5) the device is lost to the whole process: it must be started again
`-- ArtifactInvalid            at load only: a file is missing, altered or not understood
    `-- VariantUnusable        this machine cannot or must not run that variant; others may do
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

Detail = Mapping[str, str | int | float]


class TorchlaneError(Exception):
    """Base of all; `str()` is a sentence fit for the caller, `details` is for programs."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, details: Sequence[Detail] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class CallerError(TorchlaneError):
    """The request is at fault."""


class MalformedRequest(CallerError):
    """What came over the connection is not HTTP."""

    code = "bad_request"


class HeadTooLarge(CallerError):
    """The head of a request, or what stands around its body, has too many bytes or headers."""

    code = "head_too_large"


class HeadLate(CallerError):
    """The head of a request did not come in time."""

    code = "head_late"


class UntrustedHost(CallerError):
    """The Host header names none of the hosts that this server is."""

    code = "untrusted_host"


class Unauthorized(CallerError):
    """No API key was sent, or none that is known.

    Args:
        message: which of the two.
        wrong_key: whether one was sent.
    """

    code = "unauthorized"

    def __init__(self, message: str, *, wrong_key: bool = False) -> None:
        super().__init__(message)
        self.wrong_key = wrong_key


class Forbidden(CallerError):
    """The API key does not allow this, or nobody's would."""

    code = "forbidden"


class InvalidInput(CallerError):
    """The payload is not what the model takes."""

    code = "invalid_input"


class UnsupportedMediaType(CallerError):
    """The Content-Type is not one that this model reads."""

    code = "unsupported_media_type"


class NotAcceptable(CallerError):
    """The answer cannot be written in the form that the Accept header names."""

    code = "not_acceptable"


class PayloadTooLarge(CallerError):
    """More bytes, items or pixels than one request may have, or bytes than its answer."""

    code = "payload_too_large"


class ModelNotFound(CallerError):
    """No such model, or no such version of it."""

    code = "model_not_found"


class Abandoned(TorchlaneError):
    """The caller has disconnected."""

    code = "abandoned"


class Unavailable(TorchlaneError):
    """Not now; the same request may succeed later."""


class RetryLater(Unavailable):
    """Not now, but at a time that is known.

    Args:
        message: why.
        retry_after_s: until then.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(RetryLater):
    """The caller has asked for more items than it may in this time."""

    code = "rate_limited"


class Overloaded(RetryLater):
    """The queue is full, or the answer would come too late: then what waits now will be done."""

    code = "overloaded"


class ModelNotReady(Unavailable):
    """The model is known but cannot answer yet."""

    code = "model_not_ready"


class ShuttingDown(Unavailable):
    """The process takes no new work."""

    code = "shutting_down"


class DeadlineExceeded(Unavailable):
    """The time that the caller gave is over."""

    code = "deadline_exceeded"


class ItemFailed(TorchlaneError):
    """The outcome of one item."""


class BackendFailed(ItemFailed):
    """The model, or every replica that tried, failed on this item.

    Args:
        message: which of the two.
        details: for programs.
        reason: what the model said: it may hold paths, code or data, and is told to nobody but
            where that was asked for.
    """

    code = "backend_failed"

    def __init__(self, message: str, details: Sequence[Detail] = (), reason: str = "") -> None:
        super().__init__(message, details)
        self.reason = reason


class NonFiniteOutput(ItemFailed):
    """The model answered NaN or infinity to this item."""

    code = "non_finite_output"


class BackendError(TorchlaneError):
    """What a backend raises to say whose fault a failed run was."""


class ModelError(BackendError):
    """The batch made the model fail."""


class OutOfMemory(ModelError):
    """The batch does not fit into the device's memory."""


class ReplicaError(BackendError):
    """The replica does not work any more; another one may."""


class DoesNotFit(ReplicaError):
    """There is not enough memory to load a model."""


class ReplicaHangs(ReplicaError):
    """A forward, or a step of a load, did not come back in time."""


class DeviceLost(ReplicaError):
    """The device's context is broken for the whole process (a sticky CUDA error)."""


class ArtifactInvalid(TorchlaneError):
    """An artifact is incomplete, altered, or of a form that this version does not read."""

    code = "artifact_invalid"


class VariantUnusable(ArtifactInvalid):
    """A variant that this machine must not run, such as another processor's machine code."""
