"""Access checks: callers are identified by keys; scopes and rate limits are enforced.

If no key is configured, predictions are open and everything else that needs a scope is disabled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from limits import RateLimitItem

from app.access.entries import PREDICT, ApiKey, parse_limits
from app.access.keyring import Keyring
from app.access.rates import Rates
from app.errors import Forbidden, RateLimited, Unauthorized
from app.metrics import Metrics
from app.metrics.bound import KeyMetrics

BEARER = b"bearer "
ANONYMOUS = ""  # the name of a key is never empty


class Caller:
    """An admitted caller.

    Args:
        name: the key's name; empty if no key is required.
        limits: the caller's rate limits.
        rates: counts the caller's items.
        metrics: the key's metrics; None: not counted.

    Attributes:
        is_inner: whether a handler calls, for a request whose host was checked.
    """

    __slots__ = ("_limits", "_metrics", "_rates", "is_inner", "name")

    def __init__(
        self,
        name: str,
        limits: Sequence[RateLimitItem],
        rates: Rates,
        metrics: KeyMetrics | None,
    ) -> None:
        self.name = name
        self._limits = limits
        self._rates = rates
        self._metrics = metrics
        self.is_inner = False

    def arrives(self) -> None:
        """Count the head of a prediction request as one item.

        Raises:
            RateLimited: if one more item exceeds the limit now.
        """
        self._spend(1, 1)
        if self._metrics is not None:
            self._metrics.admitted.inc()

    def asks_for(self, items: int) -> None:
        """Count the items of a request, without the one that `arrives` has counted.

        Raises:
            RateLimited: if they exceed the limit now; the first one stays counted.
            PayloadTooLarge: if they exceed what a limit ever allows at once.
        """
        if items > 1:
            self._spend(items - 1, items)
        if self._metrics is not None:
            self._metrics.items.inc(items)

    def may_call(self, model: str, allowed_keys: frozenset[str]) -> None:
        """Check that the caller's key may call a model.

        Raises:
            Forbidden: if it may not.
        """
        if self.name in allowed_keys:
            return
        if self._metrics is not None:
            self._metrics.forbidden.inc()
        raise Forbidden(
            f"the API key {self.name!r} may not call the model {model!r}; the operator of this "
            "server can add it to the model's allowed_keys"
        )

    def _spend(self, items: int, total: int) -> None:
        if not self._limits:
            return
        try:
            self._rates.spend(self.name, self._limits, items, total)
        except RateLimited:
            if self._metrics is not None:
                self._metrics.rate_limited.inc()
            raise


class InnerCaller(Caller):
    """The one for whom a handler calls models: its own caller, or the server itself.

    Args:
        outer: the handler's caller; None: the server, which may call every model.
    """

    __slots__ = ("_is_server",)
    _is_server: bool

    def __init__(self, outer: Caller | None) -> None:
        is_server: bool = isinstance(outer, InnerCaller) and outer._is_server
        self._is_server = outer is None or is_server
        self.is_inner = True
        self._limits = () if outer is None else outer._limits
        self._metrics = None if outer is None else outer._metrics
        self._rates = Rates(time.monotonic) if outer is None else outer._rates
        self.name = ANONYMOUS if outer is None else outer.name

    def asks_for(self, items: int) -> None:
        """Count the items of a call; its head was not counted.

        Raises:
            RateLimited, PayloadTooLarge: see `Caller`.
        """
        self._spend(items, items)
        if self._metrics is not None:
            self._metrics.items.inc(items)

    def may_call(self, model: str, allowed_keys: frozenset[str]) -> None:
        """See `Caller`: a key that may not call a model may not do it through a handler."""
        if not self._is_server:
            super().may_call(model, allowed_keys)


class Guard:
    """Decides which callers are admitted.

    Args:
        keyring: the keys.
        default_limits: text of the limits for keys without their own, and for all callers if no
            key is required; None: no limit.
        metrics: counts requests by key.
        clock: monotonic, in seconds.

    Raises:
        EntryError: if the limits are malformed.
    """

    def __init__(
        self,
        keyring: Keyring,
        default_limits: str | None,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._keyring = keyring
        self._limits = parse_limits(default_limits) if default_limits else ()
        self._metrics = metrics
        self._rates = Rates(clock)
        self._anonymous = Caller(ANONYMOUS, self._limits, self._rates, None)
        self.asks_for_keys = keyring.is_configured
        self.enabled = keyring.is_configured or bool(self._limits)

    def admit(self, fields: Mapping[bytes, bytes], scope: str) -> Caller:
        """The caller that sent these headers, if its key has the scope.

        Args:
            fields: the headers, with lower-case names.
            scope: the required scope.

        Raises:
            Unauthorized: if the key is missing or unknown.
            Forbidden: if the key lacks the scope, or if no key is configured and the scope is not
                `predict`.
        """
        if not self.asks_for_keys:
            if scope == PREDICT:
                return self._anonymous
            raise Forbidden(
                f"calls that need the scope {scope!r} are disabled, because this server has no API "
                "keys; TORCHLANE_API_KEYS_FILE names a file of keys, see docs/security.md"
            )
        key = self._key_of(fields)
        metrics = self._metrics.key(key.name)
        if scope not in key.scopes:
            metrics.forbidden.inc()
            raise Forbidden(
                f"the API key {key.name!r} lacks the scope {scope!r}; the operator of this server "
                "can add it to the key's line"
            )
        limits = self._limits if key.limits is None else key.limits
        return Caller(key.name, limits, self._rates, metrics)

    def scopes(self, fields: Mapping[bytes, bytes]) -> frozenset[str]:
        """What the caller that sent these headers may do; empty if a key is required and missing.

        Raises:
            Unauthorized: if the key is unknown.
        """
        if not self.asks_for_keys:
            return frozenset((PREDICT,))
        return self._key_of(fields).scopes if _secret_in(fields) else frozenset()

    def key_name(self, fields: Mapping[bytes, bytes]) -> str:
        """The name of the key in these headers; empty if none is required, or it is unknown."""
        key = self._keyring.find(_secret_in(fields)) if self.asks_for_keys else None
        return ANONYMOUS if key is None else key.name

    def _key_of(self, fields: Mapping[bytes, bytes]) -> ApiKey:
        secret = _secret_in(fields)
        if not secret:
            raise Unauthorized(
                "an API key is required: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        key = self._keyring.find(secret)
        if key is None:
            raise Unauthorized("unknown or revoked API key", wrong_key=True)
        return key


def _secret_in(fields: Mapping[bytes, bytes]) -> bytes:
    """The key in the headers; Authorization takes precedence over X-API-Key."""
    bearer = fields.get(b"authorization", b"")
    if bearer[: len(BEARER)].lower() == BEARER:
        return bearer[len(BEARER) :].strip()
    return fields.get(b"x-api-key", b"").strip()
