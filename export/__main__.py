"""`torchlane export`, and the other commands of `export.cli`."""

from __future__ import annotations

import signal
import sys

from models.system.command_lines import INTERRUPTED_EXIT_CODE
from models.system.streams import open_closed_streams

signals: list[int] = []


def interrupt(number: int, _: object) -> None:
    """End as Ctrl-C does, which cleans up; a second signal does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    signals.append(number)
    raise KeyboardInterrupt


if __name__ == "__main__":
    open_closed_streams()
    signal.signal(signal.SIGTERM, interrupt)
    try:  # Ctrl-C may come during imports too
        from export.cli import main
        from models.catalog import CATALOG

        code = main(sys.argv[1:], CATALOG)
    except KeyboardInterrupt:
        sys.stderr.write("torchlane: interrupted; nothing was written\n")
        code = INTERRUPTED_EXIT_CODE
    sys.exit(128 + signals[0] if signals and code == INTERRUPTED_EXIT_CODE else code)
