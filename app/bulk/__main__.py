"""`python -m app.bulk MODEL INPUT... --out DIR`.

Processes that decode import this file too: it does nothing unless it is the program.
"""

import sys

if __name__ == "__main__":
    from app.bulk.command import main

    sys.exit(main())
