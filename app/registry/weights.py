"""Which version answers a request that names none, if the models file gives versions weights.

Weighted rendezvous hashing: each version draws a number from a hash of the model, the version and
what identifies the user, scaled by its weight, and the lowest one answers. If one weight changes,
users move only to the version that gained, or away from the one that lost; two versions whose
weights keep their ratio never exchange users. With three versions or more, no choice that depends
on the request alone moves the fewest users for every change of several weights. The method is from
Schindelhauer and Schomaker, Weighted Distributed Hash Tables, 2005.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BODY, KEY, HEADER = "body", "key", "header:"  # values of `sticky`; a header's name follows
DIGESTED_BYTES = 256 << 10  # at each end of a body: more would block the event loop for too long
LEAST_SHARE = 1e-9  # of all weights: a smaller one counts as 0
DRAW_BYTES = 7  # 56 bits: more than a float keeps


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of a model's versions in the requests that name no version.

    Attributes:
        name: of the model.
        sticky: `body`, `key` or `header:NAME`: requests equal in this get the same version.
        weights: of each version, as set.
        shares: of each served version with a weight, the largest first; their sum is 1.
    """

    name: str
    sticky: str
    weights: Mapping[int, float]
    shares: Mapping[int, float]

    @property
    def header(self) -> bytes | None:
        """The name of the header that identifies a user, in lower case; None if none does."""
        name = self.sticky.removeprefix(HEADER)
        return None if name == self.sticky else name.lower().encode()

    @property
    def problem(self) -> str | None:
        """Which weights have no effect, because their versions are not served; None: all have."""
        missing = [number for number, weight in self.weights.items() if weight > 0]
        missing = sorted(number for number in missing if number not in self.shares)
        if not missing:
            return None
        gets = "the other versions get their share" if self.shares else "the newest version answers"
        return (
            f"not served, but with a weight: {self.name} {', '.join(map(str, missing))}; {gets}; "
            "TORCHLANE_VERSIONS sets which versions are served"
        )

    def ranked(self, user: bytes) -> list[int]:
        """The served versions with a weight: the one for this user, then those in its place.

        Args:
            user: what identifies it, such as the value of the header.
        """
        seed = hashlib.sha256(b"%b\n%b" % (self.name.encode(), user)).digest()
        return sorted(self.shares, key=lambda number: _draw(seed, number) / self.shares[number])


def split_of(
    name: str, weights: Mapping[int, float], sticky: str, served: Iterable[int]
) -> Split | None:
    """The shares of a model's versions; None without weights.

    Args:
        name: of the model.
        weights: by version; not negative, and empty if none is set.
        sticky: see `Split`.
        served: the served versions.
    """
    if not weights:
        return None
    present = {number: weights[number] for number in served if weights.get(number, 0) > 0}
    least = LEAST_SHARE * sum(present.values())
    present = {number: weight for number, weight in present.items() if weight > least}
    total = sum(present.values())
    ordered = sorted(present, key=lambda number: (-present[number], -number))
    shares = {number: present[number] / total for number in ordered}
    return Split(name, sticky, weights, shares)


def digest_of(body: bytes) -> bytes:
    """What identifies a body; of a large one, its ends and its length do."""
    if len(body) <= 2 * DIGESTED_BYTES:
        return hashlib.sha256(body).digest()
    digest = hashlib.sha256(body[:DIGESTED_BYTES])
    digest.update(body[-DIGESTED_BYTES:])
    digest.update(b"%d" % len(body))
    return digest.digest()


def _draw(seed: bytes, number: int) -> float:
    """A number with an exponential distribution of mean 1."""
    drawn = hashlib.sha256(b"%b%d" % (seed, number)).digest()[:DRAW_BYTES]
    return -math.log((int.from_bytes(drawn) + 0.5) / (1 << 8 * DRAW_BYTES))
