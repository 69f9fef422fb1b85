"""The target of a load: one model of one server, as described by GET /models."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtests.errors import LoadTestError, UsageError
from loadtests.server_url import ServerUrl
from models.codec_specs import CodecSpec
from models.tensors import TensorSpec, Tolerance

VARIABLE = "TORCHLANE_LOAD_API_KEY"
TIMEOUT_S = 10.0
ALL_SCORES = "?top_k=999999999"  # overrides the manifest's number
MODELS = "/models?full=true"  # with the manifest: variants and tolerances
KEY_REJECTED = (401, 403)
MAX_SHOWN_CHARACTERS = 300  # of a server's answer, in an error


class TargetError(LoadTestError):
    """There is nothing to load; the message gives the reason and the fix."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server, with header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Target:
    """One loaded version of one model.

    Attributes:
        url: of the server, without a slash at its end.
        precision: of its answers, for example `float32` or `int8`.
        manifest: the public part of its manifest.
    """

    url: str
    model: str
    version: int
    precision: str
    manifest: Mapping[str, Any]

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec.model_validate(spec) for spec in self.manifest["inputs"])

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec.model_validate(spec) for spec in self.manifest["outputs"])

    @cached_property
    def codec(self) -> CodecSpec:
        """The kind of its items, its labels, and how its first output becomes scores."""
        return TypeAdapter[CodecSpec](CodecSpec).validate_python(self.manifest["codec"])

    @cached_property
    def tolerances(self) -> tuple[Tolerance, ...]:
        """The tolerances of the variants in the served precision."""
        return tuple(
            Tolerance.model_validate(variant["tolerance"])
            for variant in self.manifest["variants"].values()
            if variant["precision"] == self.precision
        )

    def path(self, route: str, *, binary: bool = False) -> str:
        """Return the path of `predict` or `batch-predict`, for this model and all its scores.

        Args:
            route: one of the two.
            binary: whether the answer is an array, which is always complete.
        """
        query = ALL_SCORES if self.codec.top_k is not None and not binary else ""
        return f"/models/{self.model}/{route}{query}"


def learn(url: str, model: str | None = None) -> Target:
    """Query a server for its loaded model.

    Args:
        url: of the server, for example http://127.0.0.1:8000.
        model: None: the server's default one.

    Raises:
        UsageError: if that is not the URL of a server.
        TargetError: if nothing listens there, it is not a Torchlane, or has not loaded the model.
    """
    url = str(ServerUrl.parse(url))
    reply = exchange(url, "GET", MODELS)
    if reply.status in KEY_REJECTED:
        raise TargetError(
            f"{url} requires an API key, and answered {reply.status}: put a key with the scope "
            f"`predict` into the environment variable {VARIABLE}"
        )
    if reply.status != 200:
        text = reply.body[:MAX_SHOWN_CHARACTERS].decode(errors="replace")
        raise TargetError(f"GET {url}{MODELS} answered {reply.status}: {text}; is it a Torchlane?")
    return from_models(reply.body, url, model)


def from_models(answer: bytes, url: str, model: str | None = None) -> Target:
    """Choose a model from the body of GET /models.

    Raises:
        TargetError: if it is not a list of models, or the model is missing or not loaded.
    """
    try:
        models = {info["name"]: info for info in orjson.loads(answer)["models"]}
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        text = answer[:MAX_SHOWN_CHARACTERS].decode(errors="replace")
        raise TargetError(f"GET {url}/models is not a list of models: {text}") from error
    info = _model_info(models, url, model)
    if info.get("manifest") is None:
        raise TargetError(
            f"{url} has {info['name']!r}, but it is {info.get('state')}, not loaded; "
            "GET /models says why"
        )
    if info.get("kind") == "handler":
        raise TargetError(
            f"{url} has {info['name']!r}, but it is a handler, whose requests only its author "
            "knows; name a model that it calls"
        )
    try:
        target = Target(
            url=url,
            model=info["name"],
            version=info["version"],
            precision=info["precision"],
            manifest=info["manifest"],
        )
    except KeyError as error:
        raise TargetError(f"GET {url}/models has no {error} of {info['name']!r}") from error
    _check_readable(target)
    return target


def _model_info(models: Mapping[str, Any], url: str, model: str | None) -> Mapping[str, Any]:
    names = ", ".join(models) or "none"
    if model is not None:
        if model not in models:
            raise TargetError(f"{url} has no model {model!r}; it has: {names}")
        return dict(models[model])
    default = next((info for info in models.values() if info.get("default")), None)
    if default is None:
        raise TargetError(f"{url} has no default model; name one of: {names}")
    return dict(default)


def _check_readable(target: Target) -> None:
    try:
        _ = target.inputs, target.outputs, target.codec, target.tolerances
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(
            f"cannot read the manifest of {target.model!r} at {target.url}; "
            f"use the load tests of the server's own release: {error}"
        ) from error


def exchange(
    url: str,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Reply:
    """Send one request on a separate connection.

    Raises:
        TargetError: if it cannot be sent, or no answer comes within `timeout_s`.
        UsageError: if the URL or the environment's key is invalid.
    """
    server = ServerUrl.parse(url)
    secure = server.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(server.host, server.port, timeout=timeout_s)
    try:
        connection.request(method, server.prefix + path, body, with_key(headers or {}))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, names, response.read())
    except ConnectionRefusedError as error:
        raise TargetError(f"nothing listens at {url}; is the server running?") from error
    except TimeoutError as error:
        raise TargetError(
            f"{method} {url}{path} was not answered within {timeout_s:g} s; is the server busy?"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a bad name
        raise TargetError(
            f"{method} {url}{path} failed: {error or type(error).__name__}"
        ) from error
    finally:
        connection.close()


def with_key(headers: Mapping[str, str]) -> dict[str, str]:
    """Add the environment's key to the headers of a request; calls do not have it.

    Raises:
        UsageError: if it is not valid in a header; the message does not repeat it.
    """
    key = os.environ.get(VARIABLE, "").strip()  # files of secrets usually end with a newline
    if not key:
        return dict(headers)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{VARIABLE} is not an API key: printable ASCII, without spaces")
    return {**headers, "Authorization": f"Bearer {key}"}
