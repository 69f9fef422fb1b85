"""Draws requests, good and bad, from a seed; each with what a right answer to it is."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.chaos.request import (
    JSON,
    JSON_LENGTH,
    MEDIA_TYPES,
    NPY,
    OCTETS,
    V2,
    Form,
    Request,
    body_of,
    infer_of,
)
from tests.chaos.truth import DEFAULT_MODEL, FIRST_NUMBER, LAST_NUMBER, Item, Mark
from tests.chaos.versions import Versions

MAX_BODY_BYTES = 20_000
MAX_ITEMS = 64
POPULAR = range(FIRST_NUMBER, FIRST_NUMBER + 64)
FASHION = 24  # requests for a new item before another one is in fashion
SHARES = {"steady": 6, "narrow": 3, "flooded": 1}  # of what is asked for any model
FORMS: tuple[Form, ...] = ("json", "json", "json", "octets", "npy", "v2", "v2-binary")
# Of the items that are nobody else's. The last three strike at most one replica at a time.
MARKS = {
    Mark.GOOD: 0.91,
    Mark.POISON: 0.02,
    Mark.NAN: 0.02,
    Mark.LOSES: 0.01,
    Mark.GAINS: 0.01,
    Mark.SLOW: 0.01,
    Mark.FELLS: 0.003,
    Mark.BREAKS: 0.003,
    Mark.HANGS: 0.01,  # most of them do not: twice a server is enough
}
STRIKES = frozenset({Mark.FELLS, Mark.BREAKS, Mark.HANGS})
# From an item that ends a process of the handler to the next one: the more follow soon, the longer
# the process waits before it is started again.
STEADY_S = (0.3, 1.0, 3.0, 12.0)
IN_TIME = frozenset({"overloaded", "deadline_exceeded"})  # for who does not leave enough of it
# Items that are none, as JSON.
NO_ITEMS = ('"three"', "[1, 2]", "[1, [2], 3]", "null", "[1, 2, 1e39]", "{}", "[[1], [2, 3]]")


class Numbers:
    """The numbers of all items of a run, shared by its clients."""

    def __init__(self, rng: random.Random) -> None:
        self._fresh = itertools.count(POPULAR.stop)
        self._rng = rng
        self._fashion = Item(next(self._fresh), Mark.SLOW)
        self._asked = 0
        self.strikes = True  # whether items may be marked as such that strike replicas
        self._steady_until = 0.0  # before that, no item may end a handler's process

    def fresh(self) -> int:
        """One that nobody has had."""
        number = next(self._fresh)
        if number >= LAST_NUMBER:
            raise RuntimeError("bug: more items in a round than float32 can tell apart")
        return number

    def fashionable(self) -> Item:
        """One that several ask for at the same time: good, slow or poisoned."""
        if self._asked >= FASHION:
            mark = self._rng.choice((Mark.GOOD, Mark.SLOW, Mark.POISON, Mark.NAN))
            self._fashion, self._asked = Item(self.fresh(), mark), 0
        self._asked += 1
        return self._fashion

    def may_end(self, now: float) -> bool:
        """Whether an item may end a process of the handler now; then none may for a while."""
        if now < self._steady_until:
            return False
        self._steady_until = now + self._rng.choice(STEADY_S)
        return True


class Asker:
    """Draws the requests of one client.

    Args:
        name: unique in its round; the ids of its requests begin with it.
        rng: of this client.
        numbers: of the round.
        versions: that there are.
    """

    def __init__(self, name: str, rng: random.Random, numbers: Numbers, versions: Versions) -> None:
        self._name = name
        self._rng = rng
        self._numbers = numbers
        self._versions = versions
        self._ids = itertools.count(1)
        self._bad_kinds: dict[Callable[[], Request], int] = {
            self._bad_item: 40,
            self._truncated: 10,
            self._other_type: 10,
            self._too_large: 10,
            self._too_many: 5,
            self._no_timeout: 5,
            self._no_array: 5,
            self._no_tensor: 8,
            self._no_model: 5,
            self._no_version: 4,
            self._other_method: 3,
            self._no_path: 3,
        }

    def single(self) -> Request:
        """One item of its own."""
        return self._good([self._item()], many=False)

    def popular(self) -> Request:
        """One item that others ask for too, now or at any time."""
        item = self._numbers.fashionable()
        if self._rng.random() < 0.5:
            item = Item(self._rng.choice(POPULAR))
        return self._good([item], many=False, form="json", model=DEFAULT_MODEL)

    def batch(self) -> Request:
        """Items of its own and popular ones, some of them twice."""
        items = [self._item() for _ in range(self._rng.randrange(1, 12))]
        items += [Item(self._rng.choice(POPULAR)) for _ in range(self._rng.randrange(3))]
        items += self._rng.choices(items, k=self._rng.randrange(4))
        self._rng.shuffle(items)
        return self._good(items, many=True)

    def by_grpc(self) -> Request:
        """Some items of its own, for an infer call."""
        items = [self._item() for _ in range(self._rng.choice((1, 1, 1, 5)))]
        return self._good(items, many=True, form="v2-binary")

    def good(self) -> Request:
        """Any of these."""
        return self._rng.choice((self.single, self.popular, self.batch))()

    def slow(self) -> Request:
        """One that takes the model long."""
        return self._good([Item(self._numbers.fresh(), Mark.SLOW)], many=False, form="json")

    def hurried(self) -> Request:
        """A good one with little time."""
        headers = [("X-Torchlane-Timeout-Ms", str(self._rng.choice((1, 5, 20, 50))))]
        return self._good([self._item()], many=False, headers=headers, refusals=IN_TIME)

    def stalling(self, timeout_ms: int) -> Request:
        """One whose body will not come in time: a server waits for it, or a balancer before it."""
        late = self._bad("deadline_exceeded", headers=[("X-Torchlane-Timeout-Ms", str(timeout_ms))])
        return replace(late, refusals=late.refusals | {"request_late"})

    def flood(self) -> Request:
        """A large batch for the model that gets too many, with a short deadline."""
        items = [Item(self._numbers.fresh()) for _ in range(MAX_ITEMS // 2)]
        headers = [("X-Torchlane-Timeout-Ms", "100")]
        return self._good(
            items, many=True, form="json", model="flooded", headers=headers, refusals=IN_TIME
        )

    def chunked(self) -> Request:
        """A good one, to be sent in chunks."""
        headers = [("Transfer-Encoding", "chunked")]
        return self._good([self._item()], many=False, form="json", headers=headers)

    def expecting(self) -> Request:
        """A good one whose body is sent when the server has said so."""
        headers = [("Expect", "100-continue")]
        return self._good([self._item()], many=False, form="json", headers=headers)

    def bad(self) -> Request:
        """One that must be refused, and how."""
        kinds, weights = tuple(self._bad_kinds), tuple(self._bad_kinds.values())
        return self._rng.choices(kinds, weights)[0]()

    def _truncated(self) -> Request:
        return self._bad("invalid_input", body=b'{"input": [1, 2')

    def _other_type(self) -> Request:
        return self._bad("unsupported_media_type", headers=[("Content-Type", "text/csv")])

    def _too_large(self) -> Request:
        return self._bad("payload_too_large", body=b" " * (MAX_BODY_BYTES + 1))

    def _too_many(self) -> Request:
        items = [Item(self._numbers.fresh()) for _ in range(MAX_ITEMS + 1)]
        body = body_of(items, "json", many=True)
        return self._bad("payload_too_large", "/batch-predict", body=body)

    def _no_timeout(self) -> Request:
        return self._bad("invalid_input", headers=[("X-Torchlane-Timeout-Ms", "soon")])

    def _no_array(self) -> Request:
        octets = [("Content-Type", self._rng.choice((OCTETS, NPY)))]
        return self._bad("invalid_input", body=b"1234567", headers=octets)

    def _no_tensor(self) -> Request:
        """Cut off, with a wrong length of its JSON, bytes too many or too few, a wrong shape."""
        head, octets = infer_of([[99, 0, 0]], "v2-binary")
        length = len(head)
        wrong = self._rng.randrange(6)
        if wrong == 0:
            head, length = head[:-1], length - 1
        elif wrong == 1:
            length = self._rng.choice((1, length - 1, length + 1, 10**9))
        elif wrong == 2:
            octets += b"\0"
        elif wrong == 3:
            octets = octets[:-1]
        elif wrong == 4:
            head = head.replace(b"[1, 3]", b"[3, 1]")
        else:
            head = head.replace(b"FP32", b"FP64")
        headers = [(JSON_LENGTH, str(length))]
        path = f"/v2/models/{DEFAULT_MODEL}/infer"
        return self._bad("invalid_input", path, body=head + octets, headers=headers, form="v2")

    def _no_model(self) -> Request:
        return self._bad("model_not_found", "/models/nobody/predict")

    def _no_version(self) -> Request:
        return self._bad("model_not_found", f"/models/{DEFAULT_MODEL}/versions/999999/predict")

    def _other_method(self) -> Request:
        return self._bad("method_not_allowed", method="GET", body=b"")

    def _no_path(self) -> Request:
        return self._bad("not_found", "/nowhere")

    def _bad_item(self) -> Request:
        wrong = self._rng.choice(NO_ITEMS)
        if self._rng.random() < 0.3:
            return self._bad("invalid_input", body=f'{{"input": {wrong}}}'.encode())
        places = [json.dumps(Item(self._numbers.fresh()).values()) for _ in range(5)]
        culprit = self._rng.randrange(len(places))
        places[culprit] = wrong
        body = f'{{"inputs": [{", ".join(places)}]}}'.encode()
        return self._bad("invalid_input", "/batch-predict", body=body, culprit=culprit)

    def _item(self) -> Item:
        mark = self._rng.choices(tuple(MARKS), tuple(MARKS.values()))[0]
        if mark in STRIKES and not self._numbers.strikes:
            mark = Mark.GOOD
        return Item(self._numbers.fresh(), mark)

    def _id(self) -> str:
        return f"{self._name}-{next(self._ids)}"

    def _bad(
        self,
        code: str,
        path: str = "/predict",
        *,
        body: bytes = b'{"input": [99, 0, 0]}',
        headers: Sequence[tuple[str, str]] = (("Content-Type", JSON),),
        culprit: int | None = None,
        method: str = "POST",
        form: Form = "json",
    ) -> Request:
        return Request(
            self._id(),
            path,
            body,
            headers=headers,
            refusals=frozenset({code}),
            culprit=culprit,
            predicts=False,
            method=method,
            form=form,
        )

    def _good(
        self,
        items: Sequence[Item],
        *,
        many: bool,
        form: Form | None = None,
        model: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        refusals: frozenset[str] = frozenset(),
    ) -> Request:
        written = self._rng.choice(FORMS) if form is None else form
        model = model or self._rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
        version = None
        is_v2 = written in V2
        unnamed = model == DEFAULT_MODEL and not is_v2 and self._rng.random() < 0.7
        prefix = "" if unnamed else f"{'/v2' if is_v2 else ''}/models/{model}"
        if prefix and self._rng.random() < 0.3:
            version = self._versions.newest(model)
            prefix += f"/versions/{version}"
        media_type = MEDIA_TYPES[written]
        sent = [("Content-Type", media_type), *headers]
        if written in ("octets", "npy"):
            sent.append(("Accept", media_type))
        if written == "v2-binary":
            head, _ = infer_of([item.values() for item in items], written)
            sent.append((JSON_LENGTH, str(len(head))))
        call = "infer" if is_v2 else "batch-predict" if many else "predict"
        return Request(
            self._id(),
            f"{prefix}/{call}",
            body_of(items, written, many=many),
            model=model,
            version=version,
            items=items,
            many=many,
            form=written,
            headers=sent,
            refusals=refusals,
        )
