"""Code blocks of the documents, to be run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(document: str) -> list[tuple[str, str]]:
    """Language and text of each block of a document."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def curl_blocks(document: str = "README.md") -> list[tuple[str, str | None]]:
    """Each block that calls the server, with the JSON block that follows it, if one does."""
    found: list[tuple[str, str | None]] = []
    every = blocks(document)
    for index, (language, text) in enumerate(every):
        if language == "sh" and "curl" in text:
            following = every[index + 1] if index + 1 < len(every) else ("", "")
            found.append((text, following[1] if following[0] == "json" else None))
    return found
