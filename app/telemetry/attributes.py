"""Names, attributes and events of spans, by OpenTelemetry's semantic conventions."""

from __future__ import annotations

import traceback
from typing import TypeAlias

from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.exception_attributes import (
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    EXCEPTION_TYPE,
)
from opentelemetry.semconv.attributes.http_attributes import (
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
)
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS, SERVER_PORT
from opentelemetry.semconv.attributes.url_attributes import URL_PATH, URL_SCHEME
from opentelemetry.semconv.attributes.user_agent_attributes import USER_AGENT_ORIGINAL
from opentelemetry.util.types import AttributeValue

from app.errors import TorchlaneError
from app.telemetry.tracing import CLIENT_GONE, MOST_CHARACTERS, BatchRecord, RequestTrace

Attributes: TypeAlias = dict[str, AttributeValue]
MOST_OF_STACK = 8000  # characters
MOST_PORT = 65535  # exporters log a larger number with a traceback
MOST_OF_HOST = 261  # a name of 255 characters, and a port
EMBEDDINGS = "/v1/embeddings"
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
)
SERVER_ERROR = 500  # and above
RPC_ERRORS = frozenset(  # errors of a server
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
# Attributes that are not stable yet.
RPC_SYSTEM_NAME = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_RESPONSE_STATUS_CODE = "rpc.response.status_code"
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"


def name_of(trace: RequestTrace) -> str:
    """The name of a request's span: method and route, without the path, which has no bound."""
    if not trace.method:  # gRPC's names have no leading slash
        return trace.route.removeprefix("/")
    method = trace.method if trace.method in METHODS else "HTTP"
    return f"{method} {trace.route}" if trace.route else method


def of_head(trace: RequestTrace, host: bytes, agent: bytes | None) -> Attributes:
    """Attributes known when a request begins, for the sampler; `host` and `agent` are headers."""
    found: Attributes = {"torchlane.request_id": trace.request_id.decode("latin-1")}
    if trace.method:
        known = trace.method in METHODS
        found[HTTP_REQUEST_METHOD] = trace.method if known else "_OTHER"
        found[URL_PATH] = trace.path
        found[URL_SCHEME] = "http"
    else:
        found[RPC_SYSTEM_NAME] = "grpc"
        found[RPC_METHOD] = trace.route.removeprefix("/")
    authority = host[:MOST_OF_HOST].decode("latin-1")
    address, _, port = authority.rpartition(":")
    if address and port.isascii() and port.isdigit() and int(port) <= MOST_PORT:
        found[SERVER_ADDRESS], found[SERVER_PORT] = address.strip("[]"), int(port)
    elif authority:
        found[SERVER_ADDRESS] = authority.strip("[]")  # IPv6 addresses have brackets
    if agent is not None:
        found[USER_AGENT_ORIGINAL] = agent[:MOST_CHARACTERS].decode("latin-1")
    return found


def add_end(found: Attributes, trace: RequestTrace) -> None:
    """Add the attributes that are known when a request has ended."""
    if not trace.method:
        found[RPC_RESPONSE_STATUS_CODE] = trace.rpc_status
    elif trace.status != CLIENT_GONE:
        found[HTTP_RESPONSE_STATUS_CODE] = trace.status
    if trace.method and trace.route:
        found[HTTP_ROUTE] = trace.route
    if trace.outcome != "ok":
        found["torchlane.error.code"] = trace.outcome
        if kind := error_type_of(trace):
            found[ERROR_TYPE] = kind
    if trace.model is not None:
        found["torchlane.model"] = trace.model.name
        found["torchlane.version"] = trace.model.version
        if trace.route == EMBEDDINGS:
            found[GEN_AI_OPERATION_NAME] = "embeddings"
            found[GEN_AI_REQUEST_MODEL] = trace.model.name
    if trace.items:
        found["torchlane.items"] = trace.items
    if trace.cache is not None:
        found["torchlane.cache.hit"] = trace.cache.hit
        found["torchlane.cache.miss"] = trace.cache.miss
        found["torchlane.cache.joined"] = trace.cache.joined


def error_type_of(trace: RequestTrace) -> str:
    """The type of the server's error; empty if there is none, or if the caller is at fault."""
    if trace.method:
        return trace.outcome if trace.status >= SERVER_ERROR else ""
    return trace.rpc_status if trace.rpc_status in RPC_ERRORS else ""


def of_forward(record: BatchRecord) -> Attributes:
    """Attributes of the batch in a request's forward."""
    return {"torchlane.replica": record.replica, "torchlane.batch.items": record.items}


def of_batch(record: BatchRecord) -> Attributes:
    """Attributes of a batch that has ended."""
    found = of_forward(record)
    found["torchlane.model"] = record.model.name
    found["torchlane.version"] = record.model.version
    found["torchlane.device"] = record.device
    found["torchlane.batch.forwards"] = record.forwards
    found["torchlane.batch.compute_s"] = record.compute_s
    if record.length:
        found["torchlane.batch.length"] = record.length
    if form := record.serving.form_of(record.items):
        found["torchlane.form"] = form
    return found


def text_of(error: BaseException) -> str:
    """The text of an error, with limited length."""
    return str(error)[:MOST_CHARACTERS]


def error_attributes(error: BaseException) -> Attributes:
    """Those of an exception's event; with a stack trace only for bugs."""
    found: Attributes = {
        EXCEPTION_TYPE: type(error).__qualname__,
        EXCEPTION_MESSAGE: text_of(error),
    }
    if not isinstance(error, TorchlaneError):
        stack = traceback.format_exception(error)
        found[EXCEPTION_STACKTRACE] = "".join(stack)[-MOST_OF_STACK:]
    return found
