"""The contract of a codec: payloads to items, outputs to answers, as the manifest says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from app.codecs.item_schema import JsonSchema
from app.codecs.places import Places
from app.errors import Abandoned, CallerError, PayloadTooLarge
from app.types import Arrays, Item, Note
from models.inputs.audio import MAX_SAMPLES
from models.manifest import Manifest

JSON = "application/json"
OCTET_STREAM = "application/octet-stream"
NPY = "application/x-npy"
NPZ = "application/x-npz"
PNG = "image/png"
JPEG = "image/jpeg"
WEBP = "image/webp"
GIF = "image/gif"
WAV = "audio/wav"
FLAC = "audio/flac"
TEXT = "text/plain"
MAX_REQUEST_PIXELS = 16_000_000
MAX_REQUEST_SAMPLES = MAX_SAMPLES  # of sounds
MAX_REQUEST_CHARACTERS = 2_000_000
MAX_REQUEST_TOKENS = 1_000_000
# Tokens that become spans: if each is a span, writing them takes about 15 ms on the event loop.
MAX_LABELLED_TOKENS = 64 * 512
# Limits on the event loop, each about a millisecond: a cost as in `OpenedPicture`, and bytes.
MAX_LOOP_COST = 128 << 10
MAX_LOOP_BYTES = 32 << 10
# Costs of a text in the same unit: about 0.2 us for each ASCII character and for each token id
# sent, 5 us for each text. `weight` in models/inputs/tokenize.py defines the cost of other
# characters.
CHARACTER_COST = 32
TEXT_COST = 640
# About 10 us for each input that is numbers in JSON, and for each error that an answer lists.
INPUT_COST = ERROR_COST = 1280


class Files(NamedTuple):
    """The files that an item may be.

    Attributes:
        types: their media types.
        called: their name in a sentence, such as "a WAV or FLAC file".
    """

    types: tuple[str, ...]
    called: str


class TooLongForLoop(Exception):  # not an error: the work belongs in a thread
    """Decoding would block the event loop for more than about a millisecond."""


class Budget:
    """Limits the total cost of the pictures, sounds and texts of one request.

    Args:
        on_loop: whether decoding runs on the event loop, where it must not take long.
        is_left: whether the caller no longer waits for the answer; called in threads.
        received: bytes of the body before its Content-Encoding was undone; 0: it had none.

    Attributes:
        received: see above.
    """

    def __init__(
        self, *, on_loop: bool = False, is_left: Callable[[], bool] = bool, received: int = 0
    ) -> None:
        self.received = received
        self._is_left = is_left
        self._pixels = self._samples = self._characters = self._tokens = 0
        self._on_loop = on_loop
        self._loop_left = MAX_LOOP_COST

    def read(self, size: int) -> None:
        """Check `size` bytes before they are parsed or searched for a file.

        Raises:
            TooLongForLoop: on the event loop, if that would take too long there.
        """
        if self._on_loop and size > MAX_LOOP_BYTES:
            raise TooLongForLoop

    def picture(self, pixels: int, cost: int) -> None:
        """Charge a picture to the budget before it is decoded.

        Args:
            pixels: pixels to decode.
            cost: see `models.inputs.preprocess.OpenedPicture`.

        Raises:
            PayloadTooLarge: if the budget is spent.
            TooLongForLoop: on the event loop, if it would take too long there.
        """
        self._pixels += pixels
        advice = "split it or scale them down"
        _check_sum(self._pixels, MAX_REQUEST_PIXELS, "pictures", "pixels", advice)
        self._charge(cost)

    def sound(self, samples: int, cost: int) -> None:
        """Charge a sound to the budget before it is decoded.

        Args:
            samples: those to decode, in all channels, or if they are more, those of the item: of
                four bytes each, with its masks.
            cost: see `models.inputs.audio.OpenedSound`.

        Raises:
            PayloadTooLarge: if the budget is spent.
            TooLongForLoop: on the event loop, if it would take too long there.
        """
        self._samples += samples
        advice = "resampled ones and masks count; split it"
        _check_sum(self._samples, MAX_REQUEST_SAMPLES, "sounds", "samples", advice)
        self._charge(cost)

    def text(self, characters: int, weight: int) -> None:
        """Charge a text to the budget before it is tokenised.

        Args:
            characters: number of characters.
            weight: see `models.inputs.tokenize.weight`.

        Raises:
            PayloadTooLarge: if the request's texts are too long in total.
            TooLongForLoop: on the event loop, if it would take too long there.
        """
        self._characters += characters
        _check_sum(self._characters, MAX_REQUEST_CHARACTERS, "texts", "characters")
        self._charge(TEXT_COST + CHARACTER_COST * weight)

    def ids(self, count: int) -> None:
        """Charge a list of token ids to the budget before it is converted.

        Raises:
            TooLongForLoop: on the event loop, if it would take too long there.
        """
        self._charge(TEXT_COST + CHARACTER_COST * count)

    def numbers(self, inputs: int) -> None:
        """Charge an item to the budget before its numbers are converted from JSON.

        Args:
            inputs: how many inputs the item has. Only small bodies get here on the event loop, so
                their numbers do not count.

        Raises:
            TooLongForLoop: on the event loop, if it would take too long there.
        """
        self._charge(INPUT_COST * inputs)

    def error(self) -> None:
        """Charge the error of an invalid item, which is left out, to the budget.

        Raises:
            TooLongForLoop: on the event loop, if further items would take too long there.
        """
        self._charge(ERROR_COST)

    def tokens(self, count: int, *, labelled: bool = False) -> None:
        """Charge the tokens of an item to the budget.

        Args:
            count: number of tokens.
            labelled: whether they become spans of a text.

        Raises:
            PayloadTooLarge: if the request's items have too many tokens in total.
        """
        self._tokens += count
        if labelled:
            _check_sum(self._tokens, MAX_LABELLED_TOKENS, "texts", "tokens")
        else:
            _check_sum(self._tokens, MAX_REQUEST_TOKENS, "items", "tokens")

    def _charge(self, cost: int) -> None:
        if self._is_left():
            raise Abandoned("the caller no longer waits for the answer")
        self._loop_left -= cost
        if self._on_loop and self._loop_left < 0:
            raise TooLongForLoop


def _check_sum(got: int, most: int, what: str, unit: str, advice: str = "split it") -> None:
    if got > most:
        raise PayloadTooLarge(
            f"the {what} of one request may have at most {most} {unit} in total; {advice}"
        )


class Marks(Protocol):
    """How many marks the JSON of a request may have."""

    most_marks: int  # maximum of commas and opening brackets in the JSON of one item
    most_lists: int  # maximum of opening brackets, without that of the item's own object
    takes_nan: bool  # whether an input may have NaN, which is null in JSON


class Codec(Marks, Protocol):
    """One instance per loaded model; called on the event loop, and `decode...` also in threads."""

    manifest: Manifest
    media_types: tuple[str, ...]
    item_types: tuple[str, ...]  # media types of an item's answer, JSON first
    batch_types: tuple[str, ...]  # of the answer of many items
    files: Files | None  # those that an item may be; None: it is never a file
    parts: tuple[str, ...]  # of a form that is an item, its file first; empty: a form has files
    optional: frozenset[str]  # inputs that an item may lack
    places: Places | None  # maps outputs to the caller's picture; None if there is nothing to map

    def decode(self, value: object, budget: Budget | None = None) -> Item:
        """One item from its JSON value; files and texts are charged to the request's budget.

        Raises:
            PayloadTooLarge, TooLongForLoop: if the budget is spent.
            InvalidInput: with what was expected and what was sent.
        """

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        """The items of a JSON body, `{key: X}` or, with `max_items`, `{key: [X, ...]}`, if simple.

        A fast path for bodies with only floats, with the same outcome as `decode`. None only means
        that `decode` must read the body, and explain what is wrong, if anything.
        """

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        """The items of a raw body: exactly one if `max_items` is None, else one or more.

        Files and texts are charged to the request's budget.

        Raises:
            UnsupportedMediaType: if the media type is not one of `media_types`.
            InvalidInput: if the bytes do not match the media type and the manifest.
            PayloadTooLarge: if there are too many items (checked before any is created), or
                if the budget is spent.
        """

    def decode_arrays(self, arrays: Arrays) -> list[Item]:
        """The items of batches: one array [n, *shape] for each input, in the manifest's order.

        Args:
            arrays: of the manifest's dtypes, aligned, with n equal and at least 1.

        Raises:
            InvalidInput: if a shape or a value is wrong; for a value, with the item's index.
        """

    def item_schema(self) -> JsonSchema:
        """JSON Schema of an item."""

    def finish(self, outputs: Arrays) -> Arrays:
        """Finish a batch's outputs for answers and cache; each row is independent of the others.

        This is the only method called in a replica's thread.
        """

    def check_top_k(self) -> None:
        """Reject `top_k` for a model without scores.

        Raises:
            InvalidInput: if the model has no scores.
        """

    def chosen(self, outputs: Arrays, top_k: int | None) -> Arrays:
        """An item's outputs with only those counted rows that `encode` would write."""

    def check_pictures(self) -> None:
        """Reject `pictures` for a model without.

        Raises:
            InvalidInput: if no output is declared as a picture.
        """

    def encode(
        self,
        outputs: Arrays,
        top_k: int | None = None,
        note: Note | None = None,
        *,
        pictures: bool = False,
    ) -> dict[str, object]:
        """The finished prediction of one item as a JSON object; arrays stay arrays.

        Args:
            outputs: the item's outputs.
            top_k: how many of the highest scores, descending; None for the manifest's number.
            note: the item's note.
            pictures: whether outputs that are pictures are PNG files in base64; this is slow.

        Raises:
            NotAcceptable: if an output cannot be written as a picture.
        """

    def encode_raw(
        self, media_type: str, predictions: Sequence[Arrays], *, many: bool
    ) -> Iterator[memoryview]:
        """Predictions as bytes in parts: one array, stacked along a leading axis if `many`.

        Args:
            media_type: one of `item_types` or `batch_types`, but not JSON. PNG is slow.
            predictions: the outputs of each item.
            many: whether the request is for many items.

        Raises:
            NotAcceptable: if the predictions differ in shape, or cannot be written as a picture.
        """


def at_index(index: int, error: CallerError) -> CallerError:
    """An item's error, with the item's index in its batch."""
    problem: dict[str, str | int | float] = {"index": index, "problem": str(error)}
    details = [{**problem, **each} for each in error.details] or [problem]
    return type(error)(f"inputs[{index}]: {error}", details)


def check_count(count: int, max_items: int) -> None:
    """Reject more items than one request may have.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if count > max_items:
        raise PayloadTooLarge(f"{count} items in one request, the limit is {max_items}; split it")
