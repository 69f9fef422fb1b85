"""The contract of a codec: payloads to items, outputs to answers, as the manifest says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.codecs.item_schema import JsonSchema
from app.errors import CallerError, PayloadTooLarge
from app.types import Arrays, Item
from models.manifest import Manifest

OCTET_STREAM = "application/octet-stream"
NPY = "application/x-npy"
PNG = "image/png"
JPEG = "image/jpeg"
MAX_REQUEST_PIXELS = 16_000_000


class PixelBudget:
    """How many pixels the pictures of one request may have together: decoding holds up the loop."""

    def __init__(self) -> None:
        self._left = MAX_REQUEST_PIXELS

    def spend(self, pixels: int) -> None:
        """Take from the budget, before the work is done.

        Raises:
            PayloadTooLarge: if it is spent.
        """
        self._left -= pixels
        if self._left < 0:
            raise PayloadTooLarge(
                f"the pictures of one request may have {MAX_REQUEST_PIXELS} pixels together; "
                "split it or scale them down"
            )


class Codec(Protocol):
    """One instance per loaded model; stateless, called on the event loop."""

    manifest: Manifest
    media_types: tuple[str, ...]
    most_marks: int  # commas and opening brackets that the JSON of one item may need
    most_lists: int  # opening brackets among them that are not the item's own object

    def decode(self, value: object, budget: PixelBudget | None = None) -> Item:
        """One item from its JSON value; pictures take from the request's budget.

        Raises:
            PayloadTooLarge: if the budget is spent.
            InvalidInput: saying what was expected and what came.
        """

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        """The items of a JSON body, `{key: X}` or, with `max_items`, `{key: [X, ...]}`, if quick.

        A fast way for bodies of nothing but numbers, with the outcome of `decode`. None says only
        that the body should go that way: if anything is wrong with it, `decode` can tell what.
        """

    def decode_raw(
        self,
        media_type: str,
        body: bytes,
        *,
        max_items: int | None,
        budget: PixelBudget | None = None,
    ) -> list[Item]:
        """The items of a raw body: exactly one where `max_items` is None, else one to so many.

        Pictures take from the request's budget.

        Raises:
            UnsupportedMediaType: if the media type is not one of `media_types`.
            InvalidInput: if the bytes are not what the media type and the manifest say.
            PayloadTooLarge: if there are too many items, known before any of them is made, or if
                the budget is spent.
        """

    def item_schema(self) -> JsonSchema:
        """What an item is in JSON."""

    def finish(self, outputs: Arrays) -> Arrays:
        """What is answered and cached of a batch's outputs; rows stay rows, whatever their mates.

        The one method that is called in a replica's thread.
        """

    def check_top_k(self) -> None:
        """Refuse `top_k` for a model without scores.

        Raises:
            InvalidInput: it has none.
        """

    def encode(self, outputs: Arrays, top_k: int | None = None) -> dict[str, object]:
        """The prediction of one item, finished, as a JSON object; arrays stay arrays.

        Args:
            outputs: of the item.
            top_k: how many of the highest scores, in order; None: as the manifest says.
        """

    def encode_raw(self, media_type: str, predictions: Sequence[Arrays], *, many: bool) -> bytes:
        """Predictions as bytes: one array, with `many` stacked along a leading axis.

        Raises:
            NotAcceptable: if the model's answer is not one array, or the media type is unknown.
        """


def at_index(index: int, error: CallerError) -> CallerError:
    """What is wrong with an item, told of the batch that it came in."""
    problem: dict[str, str | int | float] = {"index": index, "problem": str(error)}
    details = [{**problem, **each} for each in error.details] or [problem]
    return type(error)(f"inputs[{index}]: {error}", details)


def check_count(count: int, max_items: int) -> None:
    """Refuse more items than one request may have.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if count > max_items:
        raise PayloadTooLarge(f"{count} items in one request, at most {max_items}; split it")
