"""Which callers are let in, with which scopes, and what is counted."""

from __future__ import annotations

import pytest

from app.access.entries import make_key
from app.access.guard import Guard
from app.access.keyring import Keyring
from app.engine.clock import ManualClock
from app.errors import Forbidden, RateLimited, Unauthorized
from app.metrics import MAX_KEY_NAMES, OTHER_KEYS, Metrics

PREDICT, PREDICT_LINE = make_key("mobile", ["predict"])
ADMIN, ADMIN_LINE = make_key("ops", ["admin"])
LIMITED, LIMITED_LINE = make_key("slow", ["predict"], "2/minute")


class Rig:
    """A guard, and what it has counted."""

    def __init__(self, *lines: str, limit: str | None = None) -> None:
        self.metrics = Metrics()
        clock = ManualClock().now
        keyring = Keyring(";".join(lines) or None, None)
        self.guard = Guard(keyring, limit, self.metrics, clock)

    def admitted(self, secret: str, scope: str = "predict") -> str:
        return self.guard.admit(bearer(secret), scope).name

    def counted(self, name: str, key: str, **labels: str) -> float | None:
        list(self.metrics.registry.collect())
        return self.metrics.registry.get_sample_value(name, {"key": key, **labels})


def bearer(secret: str) -> dict[bytes, bytes]:
    return {b"host": b"x", b"authorization": f"Bearer {secret}".encode()}


class TestWithoutKeys:
    @pytest.mark.parametrize("scope", ["admin", "metrics"])
    def test_other_scopes_are_refused_with_a_hint(self, scope: str) -> None:
        with pytest.raises(Forbidden, match="TORCHLANE_API_KEYS_FILE"):
            Rig().guard.admit(bearer(ADMIN), scope)

    def test_one_limit_applies_to_all_callers(self) -> None:
        guard = Rig(limit="2/minute").guard
        assert guard.enabled
        assert not guard.asks_for_keys
        guard.admit({}, "predict").arrives()
        guard.admit(bearer("any"), "predict").arrives()
        with pytest.raises(RateLimited):
            guard.admit({}, "predict").arrives()

    def test_predictions_are_open_without_a_lookup(self) -> None:
        guard = Rig().guard
        assert not guard.enabled
        guard.admit({}, "predict").arrives()


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {b"authorization": b"Bearer %s"},
            {b"authorization": b"bEARER   %s "},
            {b"x-api-key": b"%s"},
            {b"authorization": b"Basic abc", b"x-api-key": b" %s "},
            {b"x-api-key": b"wrong", b"authorization": b"Bearer %s"},
        ],
    )
    def test_accepted_headers_for_a_key(self, headers: dict[bytes, bytes]) -> None:
        secret = PREDICT.encode()
        sent = {name: value.replace(b"%s", secret) for name, value in headers.items()}
        assert Rig(PREDICT_LINE).guard.admit(sent, "predict").name == "mobile"

    @pytest.mark.parametrize(
        ("headers", "wrong_key"),
        [
            ({}, False),
            ({b"authorization": b""}, False),
            ({b"authorization": b"Bearer"}, False),
            ({b"authorization": b"Bearer "}, False),
            ({b"authorization": b"Basic " + PREDICT.encode()}, False),
            ({b"x-api-key": b""}, False),
            (bearer(PREDICT[:-1]), True),
            (bearer(PREDICT + "x"), True),
            (bearer("\xe9"), True),
        ],
    )
    def test_missing_or_unknown_key_is_rejected(
        self, headers: dict[bytes, bytes], wrong_key: bool
    ) -> None:
        with pytest.raises(Unauthorized) as rejected:
            Rig(PREDICT_LINE).guard.admit(headers, "predict")
        assert rejected.value.wrong_key is wrong_key
        assert PREDICT not in str(rejected.value)

    def test_no_scope_implies_another(self) -> None:
        rig = Rig(PREDICT_LINE, ADMIN_LINE)
        assert rig.admitted(PREDICT) == "mobile"
        assert rig.admitted(ADMIN, "admin") == "ops"
        for secret, scope in ((PREDICT, "admin"), (ADMIN, "predict"), (ADMIN, "metrics")):
            with pytest.raises(Forbidden, match=f"lacks the scope '{scope}'"):
                rig.admitted(secret, scope)


class TestLimits:
    def test_own_limit_of_a_key_overrides_the_default(self) -> None:
        guard = Rig(PREDICT_LINE, LIMITED_LINE, limit="1/minute").guard
        slow = guard.admit(bearer(LIMITED), "predict")
        slow.arrives()
        slow.arrives()
        with pytest.raises(RateLimited, match="2 per 1 minute"):
            slow.arrives()
        other = guard.admit(bearer(PREDICT), "predict")
        other.arrives()
        with pytest.raises(RateLimited, match="1 per 1 minute"):
            other.arrives()

    def test_batch_items_count_beyond_the_first(self) -> None:
        guard = Rig(PREDICT_LINE, limit="10/minute").guard
        caller = guard.admit(bearer(PREDICT), "predict")
        caller.arrives()
        caller.asks_for(9)
        caller.arrives()
        caller.asks_for(1)
        with pytest.raises(RateLimited):
            caller.arrives()


class TestCounting:
    def test_requests_are_counted_by_name_and_result(self) -> None:
        rig = Rig(LIMITED_LINE)
        for _ in range(2):
            caller = rig.guard.admit(bearer(LIMITED), "predict")
            caller.arrives()
            caller.asks_for(1)
        with pytest.raises(RateLimited):
            rig.guard.admit(bearer(LIMITED), "predict").arrives()
        with pytest.raises(Forbidden):
            rig.guard.admit(bearer(LIMITED), "admin")
        name = "torchlane_key_requests_total"
        assert rig.counted(name, "slow", result="admitted") == 2
        assert rig.counted(name, "slow", result="rate_limited") == 1
        assert rig.counted(name, "slow", result="forbidden") == 1
        assert rig.counted("torchlane_key_items_total", "slow") == 2

    def test_number_of_series_is_limited(self) -> None:
        metrics = Metrics()
        for number in range(MAX_KEY_NAMES + 50):
            metrics.key(f"n{number}").admitted.inc()
        metrics.key("n0").admitted.inc()
        (family,) = (
            each for each in metrics.registry.collect() if each.name == "torchlane_key_requests"
        )
        counted = {
            each.labels["key"]: each.value
            for each in family.samples
            if each.labels["result"] == "admitted"
        }
        assert len(counted) == MAX_KEY_NAMES + 1
        assert counted[OTHER_KEYS] == 50
        assert counted["n0"] == 2
