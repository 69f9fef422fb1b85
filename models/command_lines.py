"""How every command of the project reports wrong arguments."""

from __future__ import annotations

import argparse
from typing import NoReturn

USAGE_EXIT_CODE = 2


class OneLineParser(argparse.ArgumentParser):
    """Exits with one sentence about a wrong argument, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT_CODE, f"torchlane: {message} (--help explains every option)\n")
