"""Generated tests may take any time: a busy machine is not a fault of the product."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("any time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any time")
