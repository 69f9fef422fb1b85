"""What the faulty backends did, a line for each forward: written by the server, read afterwards."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK = "ok"
SUCCEEDS = frozenset({"nan", "slow"})
# Ends the batch on this replica: whatever of it has no outcome yet moves.
REPLICA_FAULTS = frozenset({"fells", "breaks", "hangs"})
# One that breaks raises ModelError: its halves are tried before it is found out.
ENDS_UNSPLIT = REPLICA_FAULTS - {"breaks"}


class Journal:
    """Appends; each line is one write, so that threads and processes may share the file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def ran(
        self, model: str, numbers: Sequence[int], what: str, *, whole: bool, unanswered: int
    ) -> None:
        """A forward has ended.

        Args:
            model: what ran.
            numbers: of its items.
            what: `ok`, or what was injected.
            whole: a batch as it was cut, not a part of one that failed.
            unanswered: items of that batch for which no forward has worked so far.
        """
        line: dict[str, object] = {"model": model, "size": len(numbers), "what": what}
        line["whole"] = whole
        if what != OK:
            line |= {"numbers": list(numbers), "unanswered": unanswered}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


@dataclass
class Ledger:
    """What a journal says of one model.

    Attributes:
        batches: as they were cut.
        items: in these.
        splits: batches that failed as a whole and had more than one item.
        struck: items of the batches in which a replica was made to fail, but for those that hung.
        hung: numbers of the items of batches that hung.
        out_of_memory: batches that did not fit.
        failed_alone: numbers of the items that failed with nobody beside them.
        faults: what was injected, and how often.
    """

    batches: int = 0
    items: int = 0
    splits: int = 0
    struck: int = 0
    hung: set[int] = field(default_factory=set)
    out_of_memory: int = 0
    failed_alone: set[int] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)

    def take(self, entry: Mapping[str, Any]) -> None:
        """One line."""
        size, what, whole = entry["size"], entry["what"], entry["whole"]
        if whole:
            self.batches += 1
            self.items += size
        if what == OK:
            return
        self.faults[what] += 1
        if what in SUCCEEDS:
            return
        self.out_of_memory += whole and what == "out of memory"
        if what == "hangs":
            self.hung.update(entry["numbers"])
        elif what in REPLICA_FAULTS:
            self.struck += entry["unanswered"]
        elif size == 1 and what != "broken":
            self.failed_alone.update(entry["numbers"])
        self.splits += whole and size > 1 and what not in ENDS_UNSPLIT


def read_journal(path: Path) -> dict[str, Ledger]:
    """Model -> what was done to it; of a process that was killed the last line may be cut off."""
    ledgers: dict[str, Ledger] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.endswith("}"):
            entry = json.loads(line)
            ledgers.setdefault(entry["model"], Ledger()).take(entry)
    return ledgers
