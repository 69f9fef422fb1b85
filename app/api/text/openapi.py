"""The calls for text in the OpenAPI document."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from app.api.dialect import Docs, Operations
from app.api.endpoints import Endpoint
from app.api.openapi.errors import Responses, error_of, errors_of, operation, prediction_errors
from app.api.openapi.headers import RETRY_AFTER, answered, parameters
from app.codecs.base import JSON

TAG, OPENAI_ERROR, TEI_ERROR = "text", "OpenAIError", "TEIError"


def _object(required: tuple[str, ...], properties: Docs, *, more: bool = True) -> Docs:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": more,
    }


def _ref(name: str) -> Docs:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Docs, least: int = 1) -> Docs:
    return {"type": "array", "items": items, "minItems": least}


_STRING: Docs = {"type": "string"}
_TEXT: Docs = {"type": "string", "minLength": 1}
_FLAG: Docs = {"type": "boolean", "default": False}
_COUNT: Docs = {"type": "integer", "minimum": 0}
_SCORE: Docs = {"type": "number"}
_TOKENS = _list(_COUNT)
_INPUTS: Docs = {
    "description": "one text or several; or token ids, of one text or of several",
    "anyOf": [_TEXT, _list(_TEXT), _TOKENS, _list(_TOKENS)],
}
_MODEL: Docs = {"type": "string", "description": "NAME or NAME/VERSION; else the default model"}
_SIZE: Docs = {"type": "integer", "minimum": 1, "description": "vector size; default: the model's"}
_FORMAT: Docs = {"type": "string", "enum": ["float", "base64"], "default": "float"}
_VECTOR = _list(_SCORE)
_TRUNCATE: Docs = {
    "type": "boolean",
    "default": True,
    "description": "truncate texts that are too long for the model, instead of rejecting them",
}
_LABELS = _list(_ref("TextLabel"))


class _Call(NamedTuple):
    """A call: what it does, the name and the schemas of its body and answer, and the answer."""

    does: str
    name: str
    told: str
    body: Docs
    answer: Docs


def _answer(kind: str, name: str, items: Docs) -> Docs:
    """An answer that names its model and counts the tokens read."""
    return _object(
        ("object", name, "model", "usage"),
        {
            "object": {"type": "string", "enum": [kind]},
            name: {"type": "array", "items": items},
            "model": {"type": "string", "description": "NAME/VERSION"},
            "usage": _ref("TextUsage"),
        },
    )


_OF_OPENAI: Docs = {
    "input": _INPUTS,
    "model": _MODEL,
    "encoding_format": _FORMAT,
    "dimensions": _SIZE,
    "user": _STRING,
}
_PAIRS: Docs = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 2}
_CALLS: dict[str, _Call] = {
    "/v1/embeddings": _Call(
        "Embeddings of texts, in OpenAI's format.",
        "Embeddings",
        "The embeddings",
        _object(("input",), _OF_OPENAI, more=False),
        _answer("list", "data", _ref("TextEmbedding")),
    ),
    "/embeddings": _Call(
        "Embeddings of texts, in infinity's format.",
        "InfinityEmbeddings",
        "The embeddings",
        _object(
            ("input",),
            {
                **_OF_OPENAI,
                "dimensions": {"type": "integer", "minimum": 0, "default": 0},
                "modality": {"type": "string", "enum": ["text"], "default": "text"},
            },
        ),
        _answer("list", "data", _ref("TextEmbedding")),
    ),
    "/embed": _Call(
        "Embeddings of texts, in the format of text-embeddings-inference.",
        "Embed",
        "The vectors, in the order of the inputs",
        _object(
            ("inputs",),
            {
                "inputs": _INPUTS,
                "model": _MODEL,
                "normalize": {"type": "boolean", "default": True},
                "truncate": _TRUNCATE,
                "dimensions": _SIZE,
            },
        ),
        _list(_VECTOR),
    ),
    "/": _Call(
        "Embeddings or labels of texts, as Hugging Face's servers of one model answer.",
        "Root",
        "As from `/embed` or `/classify`; with `parameters`, a list of labels for each text",
        _object(
            ("inputs",),
            {
                "inputs": {
                    "description": "see `/embed` and `/classify`",
                    "anyOf": [_TEXT, _list({})],
                },
                "model": _MODEL,
                "parameters": {
                    "type": "object",
                    "description": "of a pipeline: `top_k` and `function_to_apply` for labels, the "
                    "other fields of `/embed` for embeddings",
                },
                "normalize": {"type": "boolean", "default": True},
                "truncate": _TRUNCATE,
                "dimensions": _SIZE,
                "raw_scores": _FLAG,
            },
        ),
        {"anyOf": [_list(_VECTOR), _LABELS, _list(_LABELS)]},
    ),
    "/rerank": _Call(
        "Texts, ranked by how well they answer a query.",
        "Rerank",
        "The texts, best first; an object if the request has `documents`",
        _object(
            ("query",),
            {
                "query": _STRING,
                "texts": _list(_STRING),
                "documents": _list(_STRING),
                "model": _MODEL,
                "raw_scores": _FLAG,
                "return_text": _FLAG,
                "return_documents": _FLAG,
                "top_n": {"type": "integer", "minimum": 1},
                "truncate": _TRUNCATE,
            },
        ),
        {"anyOf": [_list(_ref("TextRank")), _ref("RankedDocuments")]},
    ),
    "/classify": _Call(
        "Labels of texts, with scores.",
        "Classify",
        "The labels of each text, the highest score first; a list if the request has `inputs`",
        _object(
            (),
            {
                "input": _list(_STRING),
                "inputs": {
                    "description": "a text, a pair, or a list of lists of one or two texts",
                    "anyOf": [_STRING, _PAIRS, _list(_PAIRS)],
                },
                "model": _MODEL,
                "raw_scores": _FLAG,
                "truncate": _TRUNCATE,
            },
        ),
        {"anyOf": [_LABELS, _list(_LABELS), _ref("LabelledTexts")]},
    ),
}
_SCHEMAS: dict[str, Docs] = {
    "TextUsage": _object(
        ("prompt_tokens", "total_tokens"),
        {"prompt_tokens": _COUNT, "total_tokens": _COUNT, "cut_tokens": _COUNT},
    ),
    "TextCut": _object(("tokens", "cut"), {"tokens": _COUNT, "cut": _COUNT}),
    "TextEmbedding": _object(
        ("object", "index", "embedding"),
        {
            "object": {"type": "string", "enum": ["embedding"]},
            "index": _COUNT,
            "embedding": {
                "anyOf": [_VECTOR, {"type": "string", "description": "base64 of float32"}]
            },
            "details": _ref("TextCut"),
        },
    ),
    "TextRank": _object(
        ("index", "score"), {"index": _COUNT, "score": _SCORE, "text": _STRING}, more=False
    ),
    "RankedDocument": _object(
        ("index", "relevance_score"),
        {"index": _COUNT, "relevance_score": _SCORE, "document": _STRING},
        more=False,
    ),
    "RankedDocuments": _answer("rerank", "results", _ref("RankedDocument")),
    "TextLabel": _object(("score", "label"), {"score": _SCORE, "label": _STRING}, more=False),
    "LabelledTexts": _answer("classify", "data", _LABELS),
    OPENAI_ERROR: _object(("error",), {"error": _ref("OpenAIErrorDetails")}, more=False),
    "OpenAIErrorDetails": _object(
        ("message", "type", "param", "code"),
        {
            "message": _STRING,
            "type": _STRING,
            "param": {"type": ["string", "null"], "description": "the invalid field"},
            "code": _STRING,
        },
        more=False,
    ),
    TEI_ERROR: _object(
        ("error", "error_type"),
        {
            "error": _STRING,
            "error_type": {
                "type": "string",
                "enum": ["Backend", "Overloaded", "Unhealthy", "Validation"],
            },
        },
        more=False,
    ),
    **{f"{call.name}Request": call.body for call in _CALLS.values()},
    **{f"{call.name}Answer": call.answer for call in _CALLS.values()},
}


_TEI_RESPONSES: Responses = {
    **prediction_errors(errors_of(TEI_ERROR)),
    424: error_of(TEI_ERROR, "The model failed on the input"),
    429: {
        **error_of(TEI_ERROR, "Overloaded, or the caller's rate limit is reached"),
        "headers": RETRY_AFTER,
    },
}


def _operation(errors: Responses, endpoint: Endpoint) -> list[Docs]:
    call = _CALLS[endpoint.route]
    ok: Docs = {
        "description": call.told,
        "content": _content(f"{call.name}Answer"),
        "headers": answered(many=True),
    }
    return [
        operation(
            endpoint.route.strip("/").replace("/", "_") or "root",
            call.does,
            TAG,
            {200: ok, **errors},
            body={"content": _content(f"{call.name}Request")},
            parameters=parameters(native=False),
        )
    ]


def _content(name: str) -> Docs:
    return {JSON: {"schema": _ref(name)}}


_OPENAI_RESPONSES = prediction_errors(errors_of(OPENAI_ERROR), without=(422,))
OPENAI_OPERATIONS = Operations(TAG, OPENAI_ERROR, partial(_operation, _OPENAI_RESPONSES), _SCHEMAS)
TEI_OPERATIONS = Operations(TAG, TEI_ERROR, partial(_operation, _TEI_RESPONSES), _SCHEMAS)
