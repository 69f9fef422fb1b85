"""Which models leave for others, and what requests are told meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from app.errors import ModelNotReady, Overloaded, TorchlaneError
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels
from app.serving.residency import model_memory
from app.serving.residency.load_records import LoadRecords
from app.serving.residency.model_memory import (
    MIB,
    MemoryLimits,
    ModelMemory,
    OnDemandModel,
    Residency,
)
from app.serving.residency.on_demand import OnDemandModels
from app.types import ModelId


class Engine:
    """Knows which models have work, and keeps the errors of waiting requests."""

    def __init__(self) -> None:
        self.busy: set[ModelId] = set()
        self.failed: list[tuple[str, TorchlaneError]] = []

    def is_unused(self, model: ModelId) -> bool:
        return model not in self.busy

    def fail_waiting(self, model: ModelId, error: TorchlaneError) -> None:
        self.failed.append((model.name, error))

    def wake(self) -> None:
        pass

    def park(self, model: ModelId) -> None:
        pass


class Pool:
    async def remove_everywhere(self, model: ModelId) -> None:
        pass


def _is_warm(model: OnDemandModel) -> bool:
    return not model.is_cold


class Server:
    """All models of a server with room for ten MiB, and a clock; loads take as long as told."""

    def __init__(self, records: LoadRecords | None = None) -> None:
        self.now = 1000.0
        self.engine = Engine()
        self.loaded = LoadedModels(None)
        self.grown = 0
        metrics = Metrics()
        memory = ModelMemory(
            MemoryLimits(10 * MIB, 5.0),
            self.engine.is_unused,
            metrics,
            now=lambda: self.now,
            resident=lambda: self.grown,
        )
        self.metrics = metrics
        self.models = OnDemandModels(
            memory,
            cast("Any", self.engine),
            cast("Any", Pool()),
            self.loaded,
            metrics,
            records or LoadRecords(None),
        )

    @property
    def refused(self) -> float | None:
        return self.metrics.registry.get_sample_value("torchlane_cold_refused_total")

    def add(
        self,
        name: str,
        mib: int,
        *,
        load_s: float = 1.0,
        again_s: float | None = None,
        more_mib: int = 0,
        fails: Exception | None = None,
    ) -> OnDemandModel:
        """A model whose first load takes `load_s`, and each other one `again_s` or as long.

        Each makes the process grow by `more_mib` in addition to its file.
        """
        seconds = itertools.chain(
            [load_s], itertools.repeat(load_s if again_s is None else again_s)
        )

        async def load() -> None:
            await asyncio.sleep(0)
            if fails is not None:
                raise fails
            self.now += next(seconds)
            self.grown += (mib + more_mib) * MIB

        return self.models.add(ModelId(name, 1), load, mib * MIB, None, f"digest:{name}")

    async def use(self, *models: OnDemandModel, allowed_s: float = 60.0) -> None:
        """Use one after the other, ten seconds apart."""
        for model in models:
            self.now += 10.0
            model.used()
            if model.is_cold:
                model.ask(allowed_s)
                await self.until(partial(_is_warm, model))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.001)

    def warm(self, *models: OnDemandModel) -> str:
        return "".join(each.model.name for each in models if not each.is_cold)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    it = Server()
    yield it
    await it.models.stop()


async def test_the_rate_of_use_decides(server: Server) -> None:
    a, b, c, d = (server.add(name, 3) for name in "abcd")
    await server.use(a, a, b, c, c, d)
    assert server.warm(a, b, c, d) == "acd"
    await server.use(b, b, b, b)
    assert server.warm(a, b, c, d) == "abc"


async def test_what_takes_long_to_load_stays(server: Server) -> None:
    slow, quick, new = server.add("s", 5, load_s=9.0), server.add("q", 5), server.add("n", 5)
    await server.use(slow, quick, new)
    assert server.warm(slow, quick, new) == "sn"


async def test_a_first_load_also_times_batch_sizes(server: Server) -> None:
    a, b = (server.add(name, 5, load_s=9.0, again_s=3.0) for name in "ab")
    await server.use(a, b)
    assert (a.load_s, b.load_s) == (9.0, 9.0)
    a.is_cold = True
    await server.use(a)
    assert (a.load_s, b.load_s) == pytest.approx((3.0, 3.0))


async def test_loads_of_earlier_processes_are_known(tmp_path: Path) -> None:
    server = Server(LoadRecords(tmp_path))
    a = server.add("a", 3, load_s=9.0, again_s=3.0, more_mib=2)
    assert (a.load_s, a.nbytes) == (0.0, 3 * MIB)
    await server.use(a)
    a.is_cold = True
    await server.use(a)
    assert (a.load_s, a.nbytes) == (3.0, 5 * MIB)
    await server.models.stop()
    server = Server(LoadRecords(tmp_path))
    a = server.add("a", 3, load_s=9.0)
    assert (a.load_s, a.nbytes) == (9.0, 5 * MIB)  # its first load here times batch sizes again
    with pytest.raises(Overloaded, match=r"about 9\.0 s"):
        a.ask(8.0)
    await server.until(partial(_is_warm, a))
    assert a.load_s == 3.0
    await server.models.stop()


async def test_one_slow_load_changes_little(server: Server) -> None:
    a = server.add("a", 5, load_s=1.0, again_s=11.0)
    await server.use(a)
    a.again_s, a.is_cold = 1.0, True
    await server.use(a)
    assert a.load_s == pytest.approx(4.0)


async def test_large_models_leave_before_small_ones(server: Server) -> None:
    large, small, new = server.add("l", 6), server.add("s", 1), server.add("n", 6)
    await server.use(large, small, new)
    assert server.warm(large, small, new) == "sn"


async def test_earlier_uses_fade(server: Server) -> None:
    old, new, other = (server.add(name, 5) for name in ("old", "new", "other"))
    await server.use(*[old] * 40, *[new] * 39, other)
    assert server.warm(old, new, other) == "newother"


async def test_weights_are_scaled_before_they_overflow(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_memory, "MOST_WEIGHT", 4.0)
    often, seldom, new = (server.add(name, 5) for name in "osn")
    await server.use(*[often, often, often, seldom] * 20, new)
    assert server.warm(often, seldom, new) == "on"
    assert often.uses < 100


async def test_models_with_work_stay(server: Server) -> None:
    a, b, c = (server.add(name, 5) for name in "abc")
    await server.use(a, a, b)
    server.engine.busy = {a.model, b.model}
    server.now += 60
    with pytest.raises(Overloaded, match="no room for model c/1 now") as refused:
        c.ask(60.0)
    assert refused.value.retry_after_s == 1.0
    assert "try again in 1.0 s, or allow more memory" in str(refused.value)
    server.engine.busy = {a.model}
    await server.use(c)
    assert server.warm(a, b, c) == "ac"


async def test_a_model_that_was_just_loaded_stays(server: Server) -> None:
    a, b = server.add("a", 6), server.add("b", 6)
    await server.use(a)
    server.now += 2.0
    with pytest.raises(Overloaded, match=r"loaded less than 5 s ago") as refused:
        b.ask(60.0)
    assert refused.value.retry_after_s == pytest.approx(3.0)
    server.now += 3.0
    await server.use(b)
    assert server.warm(a, b) == "b"


async def test_loads_ahead_count(server: Server) -> None:
    a, b = server.add("a", 3, load_s=4.0), server.add("b", 3, load_s=2.0)
    await server.use(a, b)
    for each in (a, b):
        each.is_cold = True
    a.ask(5.0)
    with pytest.raises(Overloaded, match=r"model b/1 is being loaded, .* about 6\.0 s") as refused:
        b.ask(5.9)
    assert refused.value.retry_after_s == pytest.approx(6.0)
    await server.until(lambda: not b.is_cold)  # it was loaded all the same


async def test_the_load_of_a_model_that_is_always_loaded_counts(server: Server) -> None:
    a = server.add("a", 3, load_s=2.0)
    await server.use(a)
    a.is_cold = True
    async with server.models.counted(ModelId("always", 1), MIB):
        a.ask(2.1)  # nothing is known of a first load
        server.now += 8.0
    await server.until(lambda: not a.is_cold)
    a.is_cold = True
    with contextlib.suppress(RuntimeError):
        async with server.models.counted(ModelId("always", 2), MIB):
            server.now += 3.0
            with pytest.raises(
                Overloaded, match=r"a/1 is being loaded, .* about 7\.0 s"
            ) as refused:
                a.ask(6.9)
            assert refused.value.retry_after_s == pytest.approx(7.0)
            server.now += 9.0  # longer than the last one
            a.ask(2.1)
            raise RuntimeError
    await server.until(lambda: not a.is_cold)
    a.is_cold = True
    a.ask(2.1)


async def test_what_is_known_of_a_version(server: Server) -> None:
    a, b = server.add("a", 3, load_s=4.0), server.add("b", 3, load_s=2.0)
    residency = server.models.residency
    assert residency(a.model) == Residency()
    a.ask(60.0)
    assert residency(a.model) == Residency()  # nothing is known of a first load
    await server.until(lambda: not a.is_cold)
    server.now += 7.0
    assert residency(a.model) == Residency(3 * MIB, idle_s=7.0)
    await server.use(b)
    a.is_cold = b.is_cold = True
    a.ask(60.0)
    b.ask(60.0)
    assert residency(a.model).left_s == pytest.approx(4.0)
    assert residency(b.model).left_s == pytest.approx(6.0)
    always = ModelId("always", 1)
    async with server.models.counted(always, MIB):
        assert residency(always) == Residency()
    assert residency(always) == Residency(MIB)


async def test_room_that_is_lost_before_the_load(server: Server) -> None:
    a, b = server.add("a", 6), server.add("b", 6)
    await server.use(a)
    server.now += 10.0
    b.ask(60.0)
    server.engine.busy = {a.model}  # a request arrived
    await server.until(lambda: bool(server.engine.failed))
    ((name, error),) = server.engine.failed
    assert (name, type(error)) == ("b", Overloaded)
    assert server.warm(a, b) == "a"


async def test_no_model_leaves_for_copies(server: Server) -> None:
    a, shadow, c = server.add("a", 6), server.add("s", 3), server.add("c", 2)
    await server.use(a)
    server.now += 10.0
    shadow.ask(60.0, for_copies=True)  # there is room for it
    await server.until(partial(_is_warm, shadow))
    with pytest.raises(Overloaded, match="no room for model c/1"):
        c.ask(60.0, for_copies=True)
    await server.use(a)
    c.ask(60.0)  # a request
    await server.until(partial(_is_warm, c))
    assert server.warm(a, shadow, c) == "ac"  # although it was loaded just now
    with pytest.raises(Overloaded):
        shadow.ask(60.0, for_copies=True)
    assert server.refused == 0


async def test_a_request_for_a_model_that_is_loaded_for_copies(server: Server) -> None:
    shadow, b = server.add("s", 6), server.add("b", 6)
    shadow.ask(60.0, for_copies=True)
    shadow.ask(60.0)
    await server.until(partial(_is_warm, shadow))
    with pytest.raises(Overloaded):
        b.ask(60.0)  # it was loaded a moment ago, and not only for copies
    assert server.refused == 1


async def test_what_copies_load_is_larger_than_its_files(server: Server) -> None:
    a, shadow = server.add("a", 6), server.add("s", 1, more_mib=4)
    await server.use(a)
    server.now += 10.0
    shadow.ask(60.0, for_copies=True)
    await server.until(lambda: bool(server.engine.failed))
    await server.until(lambda: shadow.is_cold)
    assert server.warm(a, shadow) == "a"


async def test_whether_there_is_room(server: Server) -> None:
    a, b, large = server.add("a", 6), server.add("b", 6), server.add("l", 11)
    rooms = [server.models.has_room(each.model) for each in (a, b, large)]
    assert rooms == [each.may_load for each in (a, b, large)] == [True, True, False]
    await server.use(a)
    assert [server.models.has_room(each.model) for each in (a, b)] == [True, False]
    server.now += 10.0
    assert server.models.has_room(b.model)  # `a` may leave
    assert server.models.has_room(ModelId("always", 1))


async def test_models_that_are_always_loaded_count(server: Server) -> None:
    a = server.add("a", 6)
    always = ModelId("always", 1)
    async with server.models.counted(always, MIB):
        server.grown += 5 * MIB
    with pytest.raises(ModelNotReady, match=r"takes at least 6 MiB, .* always loaded 5 MiB; .* 10"):
        a.ask(60.0)
    await server.models.remove(always)
    await server.use(a)
    assert not a.is_cold


async def test_what_else_grows_is_not_the_models(server: Server) -> None:
    a = server.add("a", 1)
    load = a.load

    async def noisy() -> None:
        await load()
        server.grown += 1000 * MIB

    a.load = noisy
    await server.use(a)
    assert a.nbytes == 4 * MIB + 32 * MIB
    server.now += 10.0
    a.is_cold, a.load = True, load
    await server.use(a)  # although it seemed to be larger than all the memory
    assert a.nbytes < 10 * MIB


async def test_always_loaded_models_make_others_leave(server: Server) -> None:
    a = server.add("a", 6)
    await server.use(a)
    server.now += 10.0
    async with server.models.counted(ModelId("always", 1), 5 * MIB):
        pass  # it did not grow: its file counts
    assert a.is_cold


async def test_requests_after_a_load_find_the_model(server: Server) -> None:
    """Although it takes so much that another one must leave, and none has to stay."""
    server.models._memory._limits = MemoryLimits(10 * MIB, 0.0)
    a = server.add("a", 6)
    a.file_bytes = 9 * MIB
    await server.use(a)
    a.nbytes = 11 * MIB
    await server.models._look()
    assert a.is_cold
    assert not a.is_coming
    a.ask(60.0)
    await server.until(partial(_is_warm, a))


async def test_a_failed_load_is_told_until_the_next_attempt(server: Server) -> None:
    a = server.add("a", 1, fails=RuntimeError("/secret/path"))
    a.ask(60.0)
    await server.until(lambda: bool(server.engine.failed))
    ((_, error),) = server.engine.failed
    assert isinstance(error, ModelNotReady)
    assert "secret" not in str(error)
    with pytest.raises(ModelNotReady, match="could not be loaded"):
        a.ask(60.0)
    server.now += 10.0
    a.ask(60.0)
    await server.until(lambda: len(server.engine.failed) == 2)


async def test_warming_says_why_it_failed(server: Server) -> None:
    a, broken = server.add("a", 6), server.add("b", 3, fails=RuntimeError("broken"))
    await server.models.warm(a.model)
    await server.models.warm(a.model)
    assert not a.is_cold
    with pytest.raises(ModelNotReady, match="model b/1 could not be loaded"):
        await server.models.warm(broken.model)
    server.now += 10.0
    retired = asyncio.create_task(server.models.warm(broken.model))
    await asyncio.sleep(0)
    await server.models.remove(broken.model)
    await retired
    assert broken.is_cold


async def test_memory_that_was_freed_before_does_not_hide_a_model(server: Server) -> None:
    a = server.add("a", 4)
    a.file_bytes = MIB
    await server.use(a)
    a.is_cold, a.load = True, lambda: asyncio.sleep(0)  # which does not grow
    await server.use(a)
    assert 3.5 * MIB < a.nbytes < 4 * MIB
    for _ in range(20):
        a.is_cold = True
        await server.use(a)
    assert a.nbytes == MIB


async def test_a_version_that_is_retired_is_not_loaded(server: Server) -> None:
    a = server.add("a", 1)
    a.ask(60.0)
    await server.models.remove(a.model)
    assert a.is_cold
    assert not server.models.works(a.model)
