"""POST /invocations: the prediction call of SageMaker, MLflow and, by its own path, Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping

from app.api.errors import RawAnswer
from app.api.instances import INPUTS, INSTANCES, RECORDS, SPLIT, InstancesCall
from app.api.memo import Written
from app.codecs.sniffing import media_type_in, sniffed
from app.errors import InvalidInput
from app.types import Answer, Item

ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"
MAX_ATTRIBUTES = 1024  # characters: SageMaker's limit
PICTURE = "application/x-image"  # what clients of SageMaker call pictures of any format


class InvocationsCall(InstancesCall):
    """See `Call`. Answers repeat SageMaker's header of custom attributes."""

    __slots__ = ("_attributes",)
    forms = (INSTANCES, INPUTS, SPLIT, RECORDS)
    has_columns = False
    shows_labels = True

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        super().read_head(fields)
        self._attributes = fields.get(ATTRIBUTES, b"")
        if len(self._attributes) > MAX_ATTRIBUTES or not self._attributes.isascii():
            raise InvalidInput(
                "X-Amzn-SageMaker-Custom-Attributes must be at most "
                f"{MAX_ATTRIBUTES} characters of ASCII, got {len(self._attributes)} bytes"
            )

    def read(self, body: bytes) -> list[Item]:
        if media_type_in(self._content_type) == PICTURE:
            self._content_type = sniffed(body) or PICTURE
        return super().read(body)

    def _finished(self, answer: Answer, answered: float, written: Written) -> RawAnswer:
        """See `Answering`; the memo keeps no attributes, which are the caller's."""
        status, headers, content = super()._finished(answer, answered, written)
        if self._attributes:
            headers.append((ATTRIBUTES, self._attributes))
        return status, headers, content
