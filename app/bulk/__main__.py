"""`torchlane score MODEL INPUT... --out DIR`.

Decoding processes import this file too: it does nothing unless it is the main program.
"""

import signal
import sys

if __name__ == "__main__":
    from app.bulk.command import main

    # Containers and systemd stop a process with it. Like Ctrl-C, it leaves a run to resume.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
