"""The Open Inference Protocol, version 2, over HTTP; gRPC has its statuses too."""

from __future__ import annotations

from functools import partial

from app.api.dialect import Dialect
from app.api.endpoints import Endpoint
from app.api.handlers.call import model_or_handler
from app.api.oip.handlers import InferHandlerCall
from app.api.oip.infer import InferCall, KnownHeads
from app.api.oip.openapi import FORM, OPERATIONS
from app.api.oip.routes import add_oip


def endpoints() -> tuple[Endpoint, ...]:
    """The endpoints of infer calls, which share the known heads."""
    of_model = partial(InferCall, KnownHeads())
    call = model_or_handler(of_model, InferHandlerCall, with_tensors=True)
    return tuple(
        Endpoint(route, call, many=True)
        for route in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")
    )


OIP = Dialect(
    endpoints=endpoints,
    errors=FORM,
    docs=OPERATIONS,
    roots=("v2",),
    add_routes=add_oip,
    probes=("/v2/health/live", "/v2/health/ready"),
    admin_paths=("/v2/repository/models",),
)
