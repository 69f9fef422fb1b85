"""The packages that settings need and a plain installation lacks."""

from __future__ import annotations

from app.settings import PREFIX, Settings, SettingsError
from models.stores.urls import StoreUrl, check_store_extra
from models.system.extras import check_extra

GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection")
REDIS_PACKAGES = ("redis", "hiredis")


def check_extras(settings: Settings) -> None:
    """Check that the packages that settings need are installed, and what only they can check.

    Raises:
        MissingExtra: if some are not.
        SettingsError: if the cache's URL has a wrong option.
    """
    if isinstance(settings.model_dir, StoreUrl):
        check_store_extra(f"{PREFIX}MODEL_DIR=", settings.model_dir)
    if settings.grpc_port is not None:
        check_extra(f"{PREFIX}GRPC_PORT={settings.grpc_port}", "grpc", GRPC_PACKAGES)
    if settings.cache_url is not None:  # not shown: it may contain a password
        check_extra(f"{PREFIX}CACHE_URL", "redis", REDIS_PACKAGES)
        # Not at the top: an extra. Not later: models are measured and loaded next.
        from app.shared_cache.address import Address  # noqa: PLC0415

        try:
            Address(settings.cache_url)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}CACHE_URL: {error}") from None
