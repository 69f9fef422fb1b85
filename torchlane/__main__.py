"""`python -m torchlane COMMAND`: the command `torchlane`, for a Python that is not on the PATH."""

from __future__ import annotations

import sys

from torchlane.command import main

if __name__ == "__main__":
    sys.exit(main())
