"""Where the models are, as the settings say: in a folder, or in a store with a mirror here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from app.registry.repository import Repository
from app.settings import PREFIX, Settings, SettingsError
from app.sources.mirror import Mirror
from app.sources.repository import MirroredRepository
from app.sources.source import Source, SourceConfig
from models.integrity import Verifier
from models.stores.home import home_folder
from models.stores.urls import SERVICES, StoreUrl

if TYPE_CHECKING:
    from models.signatures import TrustedKeys


def repository_of(settings: Settings) -> Repository:
    """What is on this machine now; signatures are not checked, and no store is asked."""
    if not isinstance(settings.model_dir, StoreUrl):
        return Repository(settings.model_dir)
    mirror = Mirror(
        _cache_for_stores(settings), settings.model_dir, _whose(settings, settings.model_dir)
    )
    return MirroredRepository(mirror, None)


def source_of(
    settings: Settings,
    url: StoreUrl,
    verifier: Verifier | None,
    models: tuple[str, ...] | None = None,
) -> Source:
    """What keeps the mirror of a store.

    Args:
        settings: all settings.
        url: the store, which is their `model_dir`.
        verifier: checks signatures; None: they are not checked.
        models: the only models that are wanted; None: all.

    Raises:
        SettingsError: if there is no place for the cache, or it cannot be written.
    """
    config = SourceConfig(
        url=url,
        cache=_cache_for_stores(settings),
        cache_bytes=settings.source_cache_bytes,
        cache_setting=f"{PREFIX}SOURCE_CACHE_BYTES",
        poll_s=settings.source_poll_s,
        policy=settings.versions,
        models=models,
        whose=_whose(settings, url),
    )
    try:
        return Source(config, verifier)
    except OSError as error:
        raise SettingsError(
            f"{PREFIX}SOURCE_CACHE={str(config.cache)!r}: files from {url} cannot be kept there: "
            f"{error.strerror}; choose a folder that this user can write to"
        ) from None


def _cache_for_stores(settings: Settings) -> Path:
    """The folder of files from stores.

    Raises:
        SettingsError: if none is set, and this user has no home.
    """
    if (folder := cache_of(settings)) is None:
        raise SettingsError(
            f"this user has no home for files from stores: set {PREFIX}SOURCE_CACHE to a folder "
            "that it can write to"
        )
    return folder


def cache_of(settings: Settings) -> Path | None:
    """The folder of what can be had again; None if none is set, and this user has no home."""
    if settings.source_cache is not None:
        return settings.source_cache.absolute()
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "torchlane"
    home = home_folder()
    return None if home is None else home / ".cache" / "torchlane"


def _whose(settings: Settings, url: StoreUrl) -> str:
    """Servers with another service or other keys have another mirror, of what those allow.

    Raises:
        SettingsError: if the keys cannot be read.
    """
    known = [os.environ.get(name, "") for name in SERVICES.get(url.scheme, ())]
    if (keys := trusted_keys(settings)) is not None:
        known += sorted(keys.origins)
    return "\n".join(known)


def trusted_keys(settings: Settings) -> TrustedKeys | None:
    """What verifies signatures; None: they are not required.

    Raises:
        SettingsError: if the keys cannot be read.
    """
    path = settings.trusted_keys
    if path is None:
        return None
    # Not at the top: its imports take 8 MB, which a server without keys does not need.
    from models.signatures import KeyFileError, TrustedKeys  # noqa: PLC0415

    try:
        return TrustedKeys.read(path)
    except KeyFileError as error:
        raise SettingsError(f"{PREFIX}TRUSTED_KEYS={str(path)!r}: {error}") from None
