"""What the models of a chaos run answer: the one page that server and checker both read.

An item is three whole numbers, so that float32 holds every answer exactly: its own number, its
mark, and a salt. The answer holds the number again (whose answer is it?), a sum that differs by
model (is it right?), and the version (who answered?). One model repeats them: its answers are
large.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import NamedTuple

DEFAULT_MODEL = "steady"
# Model -> a constant in its answers. `narrow` runs out of memory above MOST_NARROW items in a
# batch, `flooded` takes FLOODED_S seconds an item, and gets more than it can do, `wide` answers an
# item with 96 KiB: more than is encoded and written at once.
MODELS = MappingProxyType({"steady": 11, "narrow": 1009, "flooded": 2003, "wide": 4001})
HANDLER, STREAMER = "relay", "feed"  # one calls `steady` and `narrow`, the other one yields
HANDLERS = MappingProxyType({HANDLER: 8009, STREAMER: 12007})
REPEATS = MappingProxyType({"wide": 8192})  # of the answer's numbers
MOST_NARROW = 8
FLOODED_S = 0.002
WIDTH = 3
FIRST_NUMBER = 16  # smaller ones are golden examples: no fault ever strikes them
LAST_NUMBER = 1 << 23  # up to here float32 holds every whole number
BAD_VERSION = 1000  # added to the version that a bad one says it has


class Mark(enum.IntEnum):
    """What an item does to the model that gets it."""

    GOOD = 0
    POISON = 1  # the model raises, at any batch that it is in
    NAN = 2  # its row is NaN
    LOSES = 3  # a row is missing
    GAINS = 4  # there is a row too many
    SLOW = 5
    # Once each; at the second try, by another replica, it is answered as if it were GOOD.
    FELLS = 6  # the replica raises ReplicaError
    BREAKS = 7  # the replica raises ModelError from now on, whatever it gets
    HANGS = 8  # the forward does not return
    # What an item does to the handler that gets it; for models it is as if it were GOOD.
    RAISES = 20
    EXITS = 21  # the process
    LOOPS = 22  # without end, in async code
    BLOCKS = 23  # sleeps in async code
    GROWS = 24  # takes more memory than the limit
    LATE = 25  # sleeps, and ends when it is cancelled
    LINGERS = 26  # ends a second after that
    STAYS = 27  # does not end then
    PAUSES = 28  # BLOCKS for a moment, then is GOOD, as are the next ones
    PRINTS = 29
    FORKS = 30  # a child that stays
    LARGE = 31  # the answer
    BYTES = 32  # the answer is a `Response`, where it is no stream
    ALONE = 33  # no model is asked for this item of a stream


FAILS = MappingProxyType(
    {
        Mark.POISON: "backend_failed",
        Mark.LOSES: "backend_failed",
        Mark.GAINS: "backend_failed",
        Mark.NAN: "non_finite_output",
        Mark.RAISES: "handler_failed",
    }
)


class Item(NamedTuple):
    """One input."""

    number: int
    mark: Mark = Mark.GOOD

    def values(self) -> list[int]:
        """As the model gets it."""
        return [self.number, int(self.mark), self.number * 7919 % 65_521]

    @property
    def code(self) -> str | None:
        """The error's code where the model cannot answer it."""
        return FAILS.get(self.mark)


def answer(model: str, version: int, item: Item) -> list[float]:
    """The only right answer of an item that has one."""
    number, mark, salt = item.values()
    constant = HANDLERS[model] if model in HANDLERS else MODELS[model]
    once = [float(number), float(3 * salt + 5 * mark + constant), float(version)]
    return once * REPEATS.get(model, 1)
