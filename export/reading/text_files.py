"""Small text files that options name."""

from __future__ import annotations

from pathlib import Path

from export.errors import UsageError
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark


def read_text(option: str, file: Path, most: int) -> str:
    """Return the text of a file in UTF-8.

    Args:
        option: for messages.
        file: to read.
        most: bytes that it may have.

    Raises:
        UsageError: if it cannot be read, is larger, or is not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise UsageError(f"{option} {file}: at most {most:,} bytes are read")
        return strip_byte_order_mark(data).decode()
    except OSError as error:
        raise UsageError(f"{option}: cannot read {file}: {error.strerror}") from error
    except (NotUtf8Error, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file.name} is not UTF-8: {error}") from error


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, whose last one may lack its end."""
    text = text.replace("\r\n", "\n")  # other characters do not end a line
    return text.removesuffix("\n").split("\n") if text else []
