"""`python -m export`: see `export.cli`."""

from __future__ import annotations

import sys

from export.cli import main
from models.catalog import CATALOG

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CATALOG))
