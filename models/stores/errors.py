"""Errors of stores, as sentences without secrets.

Libraries put addresses and a store's answers into their errors, which may contain tokens. So only
words of a closed list are taken from them.
"""

from __future__ import annotations

import re

from models.stores.urls import CREDENTIALS, StoreUrl

# Of messages of object_store 0.13, which obstore passes on.
STATUS = re.compile(r"status code: ([0-9]{3}(?: [A-Za-z]+){0,4})")
CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
DENIED = ("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "TokenRefreshRequired")
# In this order: the first words that are found say most. The last ones are names of exceptions.
REASONS = {
    "Range request not supported": "the server answers no range requests, which large files need",
    "MissingContentLength": "the server sends no Content-Length, which is needed",
    "kind: Redirect": "its redirects cannot be followed",
    "TooManyRedirects": "its redirects cannot be followed",
    "BadScheme": "its address, or one that it redirects to, must begin with https://",
    "dns error": "its name cannot be resolved",
    "certificate": "its certificate is not trusted",
    "Connection refused": "the connection was refused",
    "onnection reset": "the connection broke",
    "kind: Interrupted": "the connection broke",
    "UnexpectedEof": "the connection broke",
    "IncompleteMessage": "the connection broke",
    "kind: Timeout": "it took too long",
    "TimedOut": "it took too long",
    "kind: Connect": "no connection is possible",
    "kind: Decode": "its answer is malformed",
    "InvalidListResponse": "its answer is malformed",
    "kind: Request": "the request failed",
    "BareRedirect": "the bucket is in another region: set AWS_REGION",
    "MissingAccount": "set AZURE_STORAGE_ACCOUNT_NAME",
    "name resolution": "its name cannot be resolved",
    "Name or service not known": "its name cannot be resolved",
    "peer closed": "the connection broke",
    "ReadError": "the connection broke",
    "ConnectError": "no connection is possible",
    "Timeout": "it took too long",
    "RemoteProtocolError": "its answer is malformed",
    "JSONDecodeError": "its answer is malformed",
    "relative URL": "its address (HF_ENDPOINT) must begin with https://",
    "LocalProtocolError": "an address or a login in its variables is malformed",
}
LOGIN = re.compile("credential|metadata|token|key file|oauth", re.IGNORECASE)


class StoreError(Exception):
    """The store cannot be used now."""


class Missing(StoreError):
    """There is no such file in the store."""


class Exists(StoreError):
    """There is such a file already."""


class TooLarge(StoreError):
    """A file, or the listing, is larger than what is read."""


def reason_of(error: Exception, url: StoreUrl) -> str:
    """What a library's error says, without what may be secret in it."""
    text = f"{type(error).__name__}: {error}"
    status, code = STATUS.search(text), CODE.search(text)
    if status is not None:
        said = f"the store answers {status[1]}" + (f", {code[1]}" if code else "")
        is_denied = status[1][:3] in ("401", "403") or (code is not None and code[1] in DENIED)
        return f"{said}; it takes {CREDENTIALS[url.scheme]}" if is_denied else said
    for word, reason in REASONS.items():
        if word in text:
            return reason
    if LOGIN.search(text):
        return f"no credentials are found; it takes {CREDENTIALS[url.scheme]}"
    return f"it cannot be used ({type(error).__name__})"
