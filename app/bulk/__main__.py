"""`python -m app.bulk MODEL INPUT... --out DIR`.

Processes that decode import this file too: it does nothing unless it is the program.
"""

import signal
import sys

if __name__ == "__main__":
    from app.bulk.command import main

    # Containers and systemd stop a process by it. As Ctrl-C it leaves a run to go on with.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
