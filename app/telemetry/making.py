"""Makes spans of what was noted of requests and batches; in the thread that exports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status

from app.telemetry.attributes import Attributes, of_forward


class Forward(NamedTuple):
    """A batch that computed items of a request, with the context of its span.

    Attributes:
        moved: its replica failed, and the items waited again.
    """

    batch: SpanContext
    replica: str
    items: int
    began: float
    ended: float
    moved: bool


class RequestNote(NamedTuple):
    """A request that is over, as `RequestTrace` has it; times are of `time.perf_counter`.

    Attributes:
        offset_ns: from these to the time of day.
        forwards: of its batches, in their order.
        in_vain: it waited, and no batch took it.
    """

    name: str
    context: SpanContext
    parent: SpanContext | None
    attributes: Attributes
    began: float
    received: float
    decoded: float
    answered: float
    encoded: float
    ended: float
    offset_ns: int
    forwards: Sequence[Forward]
    in_vain: bool
    status: Status
    events: Sequence[Event]


class BatchNote(NamedTuple):
    """A batch that is over, with the spans of its requests."""

    context: SpanContext
    requests: Sequence[SpanContext]
    attributes: Attributes
    began: float
    ended: float
    offset_ns: int
    status: Status
    events: Sequence[Event]


class SpanMaker:
    """Makes the spans of one process.

    The SDK's own spans can be changed by several threads until they end, and cost five times as
    much as what it calls a readable span. That is all that processors and exporters see of either.

    Args:
        ids: makes those of spans.
        resource: of all spans.
        scope: likewise.
    """

    def __init__(self, ids: IdGenerator, resource: Resource, scope: InstrumentationScope) -> None:
        self._ids = ids
        self._resource = resource
        self._scope = scope

    def batch(self, note: BatchNote) -> list[ReadableSpan]:
        """The span of a batch."""
        return [
            ReadableSpan(
                name="batch",
                context=note.context,
                resource=self._resource,
                attributes=note.attributes,
                events=note.events,
                links=[Link(context) for context in note.requests],
                status=note.status,
                start_time=ns_of(note.began, note.offset_ns),
                end_time=ns_of(note.ended, note.offset_ns),
                instrumentation_scope=self._scope,
            )
        ]

    def request(self, note: RequestNote) -> list[ReadableSpan]:
        """The spans of a request, the one of all of it last."""
        # A body that cannot be read is decoded until the request ends.
        decoded = note.decoded or (note.ended if note.received else 0.0)
        made: list[ReadableSpan] = []
        if decoded:
            made.append(self._part(note, "decode", note.received or note.began, decoded))
        since = note.decoded
        if note.in_vain:
            made.append(self._part(note, "queue", since, note.ended))
        for each in note.forwards:
            if each.began > since:
                made.append(self._part(note, "queue", since, each.began))
            began = min(max(since, each.began), each.ended)
            attributes = of_forward(each.replica, each.items)
            links = [Link(each.batch)]
            made.append(self._part(note, "forward", began, each.ended, attributes, links))
            if each.moved:
                since = each.ended
        if note.encoded:
            made.append(self._part(note, "encode", note.answered, note.encoded))
        made.append(
            ReadableSpan(
                name=note.name,
                context=note.context,
                parent=note.parent,
                resource=self._resource,
                attributes=note.attributes,
                events=note.events,
                kind=SpanKind.SERVER,
                status=note.status,
                start_time=ns_of(note.began, note.offset_ns),
                end_time=ns_of(note.ended, note.offset_ns),
                instrumentation_scope=self._scope,
            )
        )
        return made

    def _part(
        self,
        note: RequestNote,
        name: str,
        began: float,
        ended: float,
        attributes: Attributes | None = None,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        of = note.context
        span_id = self._ids.generate_span_id()
        return ReadableSpan(
            name=name,
            context=SpanContext(of.trace_id, span_id, False, of.trace_flags, of.trace_state),
            parent=of,
            resource=self._resource,
            attributes=attributes,
            links=links,
            start_time=ns_of(began, note.offset_ns),
            end_time=ns_of(ended, note.offset_ns),
            instrumentation_scope=self._scope,
        )


def ns_of(moment: float, offset_ns: int) -> int:
    """A moment of `time.perf_counter` as nanoseconds since 1970."""
    return int(moment * 1e9) + offset_ns
