"""Lets callers in: who they are by their key, what it allows, how much they have asked for.

Without any key configured predictions are open and everything else that needs a scope is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from limits import RateLimitItem

from app.access.entries import PREDICT, ApiKey, parse_limits
from app.access.keyring import Keyring
from app.access.rates import Rates
from app.errors import Forbidden, RateLimited, Unauthorized
from app.metrics import Metrics
from app.metrics.bound import KeyMetrics

BEARER = b"bearer "
ANYBODY = ""  # names of keys are never empty


class Caller:
    """Somebody who was let in.

    Args:
        name: of the key; empty where none is asked for.
        limits: what may be asked for by time.
        rates: where that is counted.
        metrics: of the key; None: not counted.
    """

    __slots__ = ("_limits", "_metrics", "_rates", "name")

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

    def arrives(self) -> None:
        """The head of a prediction has come: it counts as an item.

        Raises:
            RateLimited: if not one more item is allowed now.
        """
        self._spend(1, 1)
        if self._metrics is not None:
            self._metrics.admitted.inc()

    def asks_for(self, items: int) -> None:
        """What has arrived holds so many items, one of which was counted.

        Raises:
            RateLimited: if they are not allowed now; the one stays counted.
            PayloadTooLarge: if so many never are allowed at once.
        """
        if items > 1:
            self._spend(items - 1, items)
        if self._metrics is not None:
            self._metrics.items.inc(items)

    def may_call(self, model: str, allowed: frozenset[str]) -> None:
        """Go on if the key is among those that may call a model.

        Raises:
            Forbidden: if it is not.
        """
        if self.name in allowed:
            return
        if self._metrics is not None:
            self._metrics.forbidden.inc()
        raise Forbidden(
            f"the API key {self.name!r} may not call the model {model!r}; whoever runs this server "
            "can add it to the model's allowed_keys"
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


class Guard:
    """Decides who is let in.

    Args:
        keyring: the keys.
        default_limits: as they are written, for keys without their own and where none is asked
            for; None: no limit.
        metrics: where to count.
        clock: seconds, ever growing.

    Raises:
        EntryError: if the limits are not how some are written.
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
        self._anybody = Caller(ANYBODY, self._limits, self._rates, None)
        self.asks_for_keys = keyring.configured
        self.looks = keyring.configured or bool(self._limits)

    def admit(self, headers: Iterable[tuple[bytes, bytes]], scope: str) -> Caller:
        """Whoever sent these headers, if their key has the scope.

        Args:
            headers: names in lower case, and values.
            scope: that is needed.

        Raises:
            Unauthorized: without a key that is known.
            Forbidden: with one that lacks the scope; also where none is configured and the scope
                is another than `predict`.
        """
        if not self.asks_for_keys:
            if scope == PREDICT:
                return self._anybody
            raise Forbidden(
                f"calls that need the scope {scope!r} are off, because this server has no API "
                "keys; TORCHLANE_API_KEYS_FILE names a file of them, docs/security.md says how"
            )
        key = self._known(headers)
        metrics = self._metrics.key(key.name)
        if scope not in key.scopes:
            metrics.forbidden.inc()
            raise Forbidden(
                f"the API key {key.name!r} lacks the scope {scope!r}; whoever runs this server "
                "can add it to the key's line"
            )
        limits = self._limits if key.limits is None else key.limits
        return Caller(key.name, limits, self._rates, metrics)

    def _known(self, headers: Iterable[tuple[bytes, bytes]]) -> ApiKey:
        secret = _presented(headers)
        if not secret:
            raise Unauthorized(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        key = self._keyring.find(secret)
        if key is None:
            raise Unauthorized("this API key is not known here, or not any more", wrong_key=True)
        return key


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that was sent; Authorization goes before X-API-Key, the first of each counts."""
    other = b""
    for name, value in headers:
        if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
            return value[len(BEARER) :].strip()
        if name == b"x-api-key" and not other:
            other = value.strip()
    return other
