"""Makes room in a cache: for a version that comes, others go that no living process wants."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from app.serving.version_policy import VersionPolicy
from app.sources.cache import Cache
from app.sources.mirror import Mirror, MirrorFolder, mirrors_of
from app.sources.wants import Wants, wants_of_all
from models.manifest import FileDigest


def make_room(
    cache: Cache,
    mirror: Mirror,
    coming: tuple[str, Mapping[str, FileDigest]],
    there: Collection[str],
) -> list[str]:
    """Make room for a version of a mirror, whose lock this process holds.

    Versions of this mirror that nobody wants go first, those with low numbers first of them; then
    mirrors that no living process wants, as a whole, those whose last look is longest ago first.

    Args:
        cache: contains the files.
        mirror: gets the version.
        coming: MODEL/VERSION, and its files.
        there: what the mirror has.

    Returns:
        The versions of this mirror that went.

    Raises:
        NoRoom: if it does not fit beside what is wanted.
        OSError: if the cache cannot be read.
    """
    key, files = coming
    wanted = {key} | _wanted(wants_of_all(mirror.wants), [*there, key])
    oldest_first = sorted({*there} - wanted, key=lambda version: int(version.rpartition("/")[2]))
    own = {mirror.repository / version: version for version in oldest_first}
    with contextlib.ExitStack() as locks:

        def droppable() -> Iterator[Path]:
            yield from own
            for other in _unused(cache.folder, mirror, locks):
                yield from (each for each in other.repository.glob("*/*") if each.is_dir())
                yield other.partials

        gone = cache.make_room(files, mirror.partials, droppable())
    return [own[folder] for folder in gone if folder in own]


def _wanted(all_wants: Iterable[Wants], there: Iterable[str]) -> set[str]:
    """The versions that living processes want, of those that are there."""
    numbers = _by_model(there)
    wanted: set[str] = set()
    for wants in all_wants:
        wanted |= wants.versions
        policy = VersionPolicy.parse(wants.policy)
        for name, each in numbers.items():
            found = policy.wanted(name, each)
            wanted |= {f"{name}/{number}" for number in found.candidates[: found.most]}
    return wanted


def _unused(cache: Path, own: Mirror, locks: contextlib.ExitStack) -> Iterator[MirrorFolder]:
    """Other mirrors that no living process wants; none can begin to write one meanwhile."""
    others = [each for each in mirrors_of(cache) if each.folder != own.folder]
    for other in sorted(others, key=lambda each: each.state.read().looked_at):
        try:
            locks.enter_context(other.kept())
        except OSError:  # a process keeps it, or it is another user's
            continue
        locks.callback(other.create)  # a process that starts has done so already
        if not any(wants_of_all(other.wants)):
            yield other


def _by_model(keys: Iterable[str]) -> dict[str, list[int]]:
    """Version numbers of each model, newest first."""
    found: dict[str, list[int]] = {}
    for key in keys:
        name, _, number = key.rpartition("/")
        found.setdefault(name, []).append(int(number))
    return {name: sorted(numbers, reverse=True) for name, numbers in found.items()}
