"""A metadata hook for hatchling: the README as a package index shows it, without the repository.

Links and pictures that lead to files of the repository would lead nowhere there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\((?!https?://|#)[^()\s]+\)"  # where a link leads
PICTURE = re.compile(rf"!\[[^\]]*\]{RELATIVE}")
LINK = re.compile(rf"\[([^\]]*)\]{RELATIVE}")
TABLE_OF_PICTURES = re.compile(r"(?:^\|.*\|\n)*^\|[ |]+\|\n", re.M)


def standing_alone(readme: str) -> str:
    """Return Markdown without pictures and links to files; the text of a link stays."""
    text = TABLE_OF_PICTURES.sub("", PICTURE.sub("", readme))
    return LINK.sub(r"\1", text)


class MetadataHook(MetadataHookInterface):
    """Adds the README to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See `MetadataHookInterface`."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standing_alone(readme)}
