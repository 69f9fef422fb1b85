"""Conversion of a model's outputs to predictions, for every kind of input."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import cast

import numpy as np

from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM, PNG
from app.codecs.npz import File, npz_parts
from app.codecs.png import png_writers
from app.codecs.rows import CountedRows
from app.codecs.spans import SpanFinder
from app.errors import InvalidInput, NotAcceptable
from app.types import Array, Arrays, Note
from models.choices import Scores
from models.manifest import Manifest
from models.rows import answer_outputs

PART_BYTES = 256 << 10


class AnswerEncoder:
    """Finishes and writes the predictions of one model.

    Args:
        manifest: has the labels and the kind of scores.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._has_rows = any(spec.count is not None for spec in manifest.outputs)
        self._rows = CountedRows(manifest)
        self._labels = manifest.codec.score_labels
        self._spans = SpanFinder(self._labels) if self._labels is not None else None
        self._is_ranked = manifest.codec.ranked_by is not None or manifest.codec.classes is not None
        self._scores = manifest.codec.scores
        self._top_k = manifest.codec.top_k
        self._has_scores = manifest.codec.has_scores(manifest.outputs[0])
        self._outputs = tuple(spec.name for spec in answer_outputs(manifest.outputs))
        self._png = png_writers(manifest.outputs)
        raw = (OCTET_STREAM, NPY) if len(self._outputs) == 1 else ()
        picture = (PNG,) if len(self._png) == 1 else ()
        self.batch_types: tuple[str, ...] = (JSON, *raw, NPZ)
        self.item_types: tuple[str, ...] = (*self.batch_types, *picture)

    def chosen(self, outputs: Arrays, top_k: int | None) -> Arrays:
        """See `Codec` and `CountedRows`."""
        return self._rows.chosen(outputs, top_k)

    def finish(self, outputs: Arrays) -> Arrays:
        """Turn the first output into scores: once per batch, not once per answer."""
        if self._scores == "none":
            return outputs
        first = self._outputs[0]
        return {**outputs, first: apply_scores(self._scores, outputs[first])}

    def check_top_k(self) -> None:
        """Reject top_k for a model without scores; see `Codec`."""
        if not self._has_scores:
            raise InvalidInput(
                "top_k selects scores of a classifier, but this model has none: no labels, no "
                "softmax or sigmoid over one axis, and no ranked rows; omit top_k"
            )

    def check_pictures(self) -> None:
        """Reject pictures for a model without; see `Codec`."""
        if not self._png:
            raise InvalidInput(
                "no output of this model is declared as a picture (`--as` of adopt); omit pictures"
            )

    def encode(
        self,
        outputs: Arrays,
        top_k: int | None = None,
        note: Note | None = None,
        *,
        pictures: bool = False,
    ) -> dict[str, object]:
        """The prediction as an object: `{outputs: {name: array}}` if there are no labels.

        With labels it is `{label, score, scores}` of the first output; `outputs` has the others, if
        any. If the first output has scores for each token, `{spans: [...]}` replaces these three.

        With `top_k`, the scores or the first output have only the highest values in descending
        order; `indices` are their positions in the whole output, and `labels` their labels.

        Outputs with counted rows have only these rows; ranked rows are in descending order, and
        `labels` are the labels of their classes.

        `details` counts the tokens that were cut off, if any. `image` says how the picture maps to
        the model's input, if the answer has places in the picture. With `pictures`, outputs that
        are declared as pictures are PNG files in base64.
        """
        if note is None or note.spans is None or self._spans is None:
            answer = self._prediction(outputs, top_k)
        else:
            scores = outputs[self._outputs[0]]
            answer = {"spans": self._spans.find(scores, note.text, note.spans)}
            if len(self._outputs) > 1:
                answer["outputs"] = self._others(outputs)
        if note is not None and note.cut:
            answer["details"] = {"tokens": note.tokens, "cut": note.cut}
        if note is not None and note.image is not None:
            answer["image"] = note.image.as_json()
        if pictures:
            arrays = cast(dict[str, object], answer["outputs"])
            for name, png in self._png.items():
                arrays[name] = base64.b64encode(png.write(outputs[name])).decode("ascii")
        return answer

    def _prediction(self, outputs: Arrays, top_k: int | None) -> dict[str, object]:
        if self._has_rows:
            outputs = self._rows.real(outputs)
            if self._is_ranked:
                return self._detections(outputs, top_k)
        if top_k is None:
            top_k = self._top_k
        scores = outputs[self._outputs[0]]
        if top_k is not None:
            return self._ranked(scores, outputs, top_k)
        if self._labels is None or scores.ndim != 1:
            return {"outputs": {self._outputs[0]: _plain(scores), **self._others(outputs)}}
        best = int(scores.argmax())
        answer = {"label": self._labels[best], "score": scores[best], "scores": scores}
        if len(self._outputs) > 1:
            answer["outputs"] = self._others(outputs)
        return answer

    def _detections(self, real: Arrays, top_k: int | None) -> dict[str, object]:
        rows, labels = self._rows.ranked(real, top_k)
        answer: dict[str, object] = {
            "outputs": {each: _plain(rows[each]) for each in self._outputs}
        }
        if labels is not None:
            answer["labels"] = labels
        return answer

    def _ranked(self, whole: Array, outputs: Arrays, top_k: int) -> dict[str, object]:
        indices = highest(whole, top_k)
        scores = whole[indices]
        if self._labels is None:
            named = {self._outputs[0]: _plain(scores), **self._others(outputs)}
            return {"outputs": named, "indices": indices}
        labels = [self._labels[index] for index in indices.tolist()]
        best = {"label": labels[0], "score": scores[0]}
        answer = {**best, "scores": scores, "labels": labels, "indices": indices}
        if len(self._outputs) > 1:
            answer["outputs"] = self._others(outputs)
        return answer

    def _others(self, outputs: Arrays) -> dict[str, object]:
        return {name: _plain(outputs[name]) for name in self._outputs[1:]}

    def encode_raw(
        self, media_type: str, predictions: Sequence[Arrays], *, many: bool
    ) -> Iterator[memoryview]:
        """Little-endian row-major bytes, an .npy or .npz file, or a PNG file; see `octets_of`."""
        if media_type == PNG:
            ((name, png),) = self._png.items()
            yield memoryview(png.write(predictions[0][name]))
            return
        real = [self._rows.real(prediction) for prediction in predictions]
        named = {name: [each[name] for each in real] for name in self._outputs}
        for arrays in named.values():
            if many and len({array.shape for array in arrays}) > 1:
                raise NotAcceptable("the predictions differ in shape, which needs application/json")
        if media_type == NPZ:
            files = (npy_file(name, arrays, many=many) for name, arrays in named.items())
            yield from npz_parts(files)
            return
        (arrays,) = named.values()
        if media_type == NPY:
            yield memoryview(_npy_head(arrays, many=many))
        yield from octets_of(arrays)


def octets_of(rows: Sequence[Array]) -> Generator[memoryview, None, None]:
    """The bytes of equal rows, little-endian and row-major, in parts.

    Small rows are copied in groups, and large ones only if their bytes are in another order.
    """
    count = max(1, PART_BYTES // max(1, rows[0].nbytes))
    for at in range(0, len(rows), count):
        group = rows[at : at + count]
        array = group[0] if len(group) == 1 else np.stack(group)
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        yield little.reshape(-1).view(np.uint8).data


def npy_file(name: str, rows: Sequence[Array], *, many: bool) -> File:
    """The .npy file of equal rows for an archive; without `many` of the only one."""
    head = _npy_head(rows, many=many)
    size = len(head) + sum(row.nbytes for row in rows)
    return File(name, size, chain((memoryview(head),), octets_of(rows)))


def _npy_head(rows: Sequence[Array], *, many: bool) -> bytes:
    """The beginning of an .npy file, before the bytes of its equal rows, or of the only one."""
    shape = (len(rows), *rows[0].shape) if many else rows[0].shape
    return _npy_head_of(rows[0].dtype.newbyteorder("<").str, shape)


@lru_cache(maxsize=256)  # few are different
def _npy_head_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def apply_scores(scores: Scores, output: Array) -> Array:
    """Softmax over the last axis, sigmoid, or nothing; keeps shape and dtype."""
    if scores == "softmax":
        shifted = np.exp(output - output.max(axis=-1, keepdims=True))  # largest is 0: no overflow
        return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
    if scores == "sigmoid":
        return np.asarray((1 + np.tanh(output / 2)) / 2, dtype=output.dtype)  # stable both ways
    return output


def highest(scores: Array, count: int) -> Array:
    """Indices of the highest scores, descending; for equal scores the lower index comes first.

    Args:
        scores: [n], without NaN.
        count: at least 1; above n, all are returned.
    """
    size = len(scores)
    if count >= size:
        return _descending(scores, np.arange(size))
    parted = scores.copy()
    parted.partition(size - count)  # a tenth of the time of np.argpartition
    least = parted[size - count]
    found = (scores >= least).nonzero()[0]
    if len(found) == count:
        return _descending(scores, found)
    is_least = scores[found] == least  # nearly all of them, if a softmax is certain
    above = found[~is_least]
    return np.concatenate([_descending(scores, above), found[is_least][: count - len(above)]])


def _descending(scores: Array, indices: Array) -> Array:
    """Sort ascending indices by descending score."""
    backwards = indices[::-1]
    ascending = np.argsort(scores[backwards], kind="stable")  # equal scores: higher index first
    return np.asarray(backwards[ascending[::-1]])


def _plain(output: Array) -> object:
    """An output in a form that orjson can write: C-contiguous, or a number if it has no axes."""
    return np.ascontiguousarray(output) if output.ndim else output[()]
