"""Code of handlers that crashes, hangs, floods or steals: what its own callers and others see."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import structlog

from app import errors
from app.handlers import keeper
from app.handlers.contract import CallReply
from app.handlers.pool import ProcessPool
from tests.unit.app.handlers.pools import (
    MB,
    CountedMetrics,
    ScriptedPlane,
    Served,
    serving,
    settled,
    spec_of,
    write,
)

# Does what the request says, in async code.
DOES = """
async def predict(self, request):
    code = request.json()
    if code:
        names = {**globals(), "self": self}
        exec("async def run():\\n " + code, names)
        return await names["run"]()
    return os.getpid()
"""
DOES_IN_THREAD = """
def predict(self, request):
    code = request.json()
    exec(code or "", globals(), {"self": self})
    return os.getpid()
"""


def code(text: str) -> bytes:
    return orjson.dumps(text)


async def outcome(served: Served, text: str, timeout_s: float = 20.0) -> str:
    """The code of a request's error; "ok" if it has none."""
    try:
        await settled(served.submit(code(text), timeout_s))
    except errors.TorchlaneError as error:
        return error.code
    return "ok"


async def test_killed_process_fails_its_requests_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, processes=2, concurrency=1) as served:
        first = served.submit(code("await asyncio.sleep(1); return os.getpid()"))
        second = served.submit(code("await asyncio.sleep(1); return os.getpid()"))
        pids = [each.child.pid for each in served.pool._keeper.processes]
        waiting = served.submit(code(""))
        await asyncio.sleep(0.2)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(errors.HandlerDied, match="SIGKILL"):
            await settled(first)
        assert orjson.loads((await settled(second)).body) == pids[1]
        await settled(waiting)
        await served.until(lambda: served.pool.load().processes == 2)
        assert served.metrics.causes == ["died"]


async def test_process_that_exits_is_restarted(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        assert await outcome(served, "os._exit(7)") == "handler_died"
        assert await outcome(served, "") == "ok"


async def test_restarts_have_a_growing_pause(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        began = time.monotonic()
        for _ in range(4):
            assert await outcome(served, "os._exit(7)") == "handler_died"
        assert await outcome(served, "") == "ok"
        assert time.monotonic() - began > 0.2 + 0.4 + 0.8 - 0.1  # FIRST_PAUSE_S, doubled


async def test_endless_loop_is_killed(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        (process,) = served.pool._keeper.processes
        assert await outcome(served, "while True: pass", 0.3) == "handler_timeout"
        await served.until(lambda: served.metrics.causes == ["stuck"])
        assert await outcome(served, "") == "ok"
        assert not psutil.pid_exists(process.child.pid)


async def test_longest_time_of_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, seconds=0.3) as served:
        assert await outcome(served, "await asyncio.sleep(20)") == "handler_timeout"
        assert await outcome(served, "") == "ok"
        assert served.metrics.causes == []


async def test_caller_that_leaves_cancels_the_code_and_its_calls(tmp_path: Path) -> None:
    methods = """
    ended = "not yet"
    async def predict(self, request):
        if request.json():
            return self.ended
        try:
            await self.call("double", 1)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
    """
    async with serving(tmp_path, methods) as served:
        served.plane.holds = True
        job = served.submit(b"0")
        await served.until(lambda: served.plane.calls)
        job.abandon()
        await served.until(lambda: served.plane.cancelled)
        assert await served.ask(b"1") == "cancelled"
        assert served.metrics.causes == []


async def test_request_that_is_cancelled_before_its_code_begins_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        blocking = served.submit(code("time.sleep(0.5)"))
        await asyncio.sleep(0.2)
        served.submit(code("")).abandon()  # the process reads both together
        await settled(blocking)
        await served.until(lambda: not served.pool._keeper.processes[0].runs)
        assert served.metrics.causes == []


async def test_waiting_thread_is_cancelled(tmp_path: Path) -> None:
    methods = """
    def predict(self, request):
        if request.json():
            return self.call_sync("double", 1)
        return os.getpid()
    """
    async with serving(tmp_path, methods) as served:
        served.plane.holds = True
        job = served.submit(b"1")
        await served.until(lambda: served.plane.calls)
        job.abandon()
        await served.until(lambda: not served.pool._keeper.processes[0].runs)
        assert served.plane.cancelled
        assert served.metrics.causes == []


async def test_blocked_thread_is_killed_once_others_have_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES_IN_THREAD) as served:
        left = served.submit(code("time.sleep(60)"))
        other = served.submit(code("time.sleep(3.5)"))
        await asyncio.sleep(0.2)
        left.abandon()
        assert await settled(other)  # not killed with the first, 2 s after it was cancelled
        await served.until(lambda: served.metrics.causes == ["stuck"])
        assert await outcome(served, "") == "ok"


async def test_blocking_code_in_async_is_killed(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        job = served.submit(code("time.sleep(60)"))
        await asyncio.sleep(0.2)
        job.abandon()
        began = time.monotonic()
        await served.until(lambda: served.metrics.causes == ["stuck"])
        assert time.monotonic() - began > 1.0


async def test_memory_above_the_limit_ends_the_process(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, memory_bytes=300 * MB) as served:
        grows = "x = b'x' * (400 << 20); await asyncio.sleep(20)"
        assert await outcome(served, grows) == "handler_memory"
        assert await outcome(served, "") == "ok"
        await served.until(lambda: 0 < served.pool.load().memory_bytes < 300 * MB)


async def test_shared_memory_of_forks_counts_once(tmp_path: Path) -> None:
    text = (
        "self.x = b'x' * (150 << 20)\n"
        " pids = [os.fork() or time.sleep(60) for _ in range(3)]\n"
        " await asyncio.sleep(1.5)\n"
        " [os.kill(p, 9) for p in pids]"
    )
    async with serving(tmp_path, DOES, memory_bytes=300 * MB) as served:
        assert await outcome(served, text) == "ok"


async def test_memory_of_children_counts(tmp_path: Path) -> None:
    text = "os.fork() or (b'x' * (400 << 20), time.sleep(60)); await asyncio.sleep(20)"
    async with serving(tmp_path, DOES, memory_bytes=300 * MB) as served:
        assert await outcome(served, text) == "handler_memory"


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), 9)"])
async def test_children_go_with_their_process(tmp_path: Path, end: str) -> None:
    async with serving(tmp_path, DOES) as served:
        forks = "self.child = os.fork() or time.sleep(60); return self.child"
        child = orjson.loads((await settled(served.submit(code(forks)))).body)
        assert psutil.pid_exists(child)
        assert await outcome(served, end) == "handler_died"
        await served.until(lambda: gone(child))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_message_of_an_exception_is_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        failing = pytest.raises(errors.HandlerFailed)
        with structlog.testing.capture_logs() as lines, failing as failure:
            await settled(served.submit(code("raise ValueError('x' * 50_000_000)")))
        assert len(failure.value.reason) < 5000
        (line,) = [each for each in lines if each["event"] == "handler_failed"]
        assert line["reason"].startswith("ValueError: xxx")
        assert line["request_id"] == "id-1"
        assert "in predict" in line["where"]


async def test_reason_that_the_caller_does_not_get_is_logged(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        for raised in (
            "CallFailed('shop', 404, 'http_error', 'ended with 404')",
            "InvalidInput('')",
        ):
            with structlog.testing.capture_logs() as lines, pytest.raises(errors.TorchlaneError):
                await settled(served.submit(code(f"raise torchlane.{raised}")))
            reasons = [each["reason"] for each in lines if each["event"] == "handler_failed"]
            assert reasons == (["ended with 404"] if "404" in raised else [])


@pytest.mark.parametrize(
    "raised",
    ["SystemExit(3)", "KeyboardInterrupt()", "asyncio.CancelledError()", "StopIteration()"],
)
@pytest.mark.parametrize("methods", [DOES, DOES_IN_THREAD])
async def test_any_exception_fails_its_request_alone(
    tmp_path: Path, methods: str, raised: str
) -> None:
    async with serving(tmp_path, methods) as served:
        assert await outcome(served, f"raise {raised}") == "handler_failed"
        assert await outcome(served, "") == "ok"
        assert served.metrics.causes == []


async def test_output_is_bounded_and_stalls_nothing(tmp_path: Path) -> None:
    prints = "for _ in range(20): sys.stdout.write(('y' * 1023 + '\\n') * 1024)"
    async with serving(tmp_path, DOES) as served:
        with structlog.testing.capture_logs() as lines:
            first = "print('hello'); sys.stderr.write('oh\\n' + 'z' * 9000 + '\\n')"
            assert await outcome(served, first) == "ok"
            assert await outcome(served, prints) == "ok"
            await served.until(lambda: served.metrics.dropped > 19_000)
        printed = [each for each in lines if each["event"] == "handler_output"]
        by_stream = {each["stream"]: each["line"] for each in reversed(printed)}
        assert by_stream == {"stdout": "hello", "stderr": "oh"}
        assert max(len(each["line"]) for each in printed) <= 4096
        assert len(printed) < 1000


WRITES = """
async def predict(self, request):
    exec(request.json(), {"send": self._served._send})
    await asyncio.sleep(20)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("send(6, 99, {'status': 200, 'media_type': 'a/b'}, b'')", "unknown request 99"),
        ("send(8, 1, {'of': 77, 'model': 'double', 'version': None}, b'')", "unknown request"),
        ("send(8, 1, {'of': 1}, b'')", "a call of no model"),
        ("send(6, 1, {'status': 7, 'media_type': 'a/b'}, b'')", "the status 7"),
        ("send(6, 1, {'status': 200, 'media_type': 'a/b\\r\\nx: y'}, b'')", "no header can have"),
        ("send(5, 0, {}, b'')", "ready, twice"),
        ("send(1, 1, {}, b'')", "unknown kind 1"),
    ],
)
async def test_wrong_frame_ends_the_process(tmp_path: Path, text: str, reason: str) -> None:
    async with serving(tmp_path, WRITES) as served:
        with pytest.raises(errors.HandlerDied, match=reason):
            await settled(served.submit(code(text)))
        assert served.metrics.causes == ["frames"]


async def test_calls_without_end_are_read_only_as_they_are_answered(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        calls = [asyncio.ensure_future(self.call("double", 1)) for _ in range(5000)]
        return len(await asyncio.gather(*calls))
    """
    async with serving(tmp_path, methods) as served:
        served.plane.holds = True
        job = served.submit()
        await served.until(lambda: len(served.plane.calls) >= 256)
        await asyncio.sleep(0.3)
        assert len(served.plane.calls) < 5000
        job.abandon()
        assert len(served.plane.cancelled) == len(served.plane.calls)
        served.plane.holds = False
        assert await served.ask() == 5000
        assert served.metrics.causes == []


async def test_process_that_does_not_read_is_ended(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        for _ in range(40):
            asyncio.ensure_future(self.call("double", 1))
        await asyncio.sleep(0.1)
        time.sleep(60)
    """
    async with serving(tmp_path, methods) as served:
        replies: list[Any] = []
        plane_call = served.plane.call

        def call(request: Any, call: Any, reply: Any) -> Any:
            replies.append(reply)
            served.plane.holds = True
            return plane_call(request, call, reply)

        served.plane.call = call  # type: ignore[method-assign]
        job = served.submit()
        await served.until(lambda: len(replies) == 40)
        await asyncio.sleep(0.5)
        body = bytes(16 << 20)
        for reply in replies:
            reply(CallReply(200, "image/png", body))
        with pytest.raises(errors.HandlerDied, match="does not read"):
            await settled(job)


async def test_process_has_none_of_the_servers_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHLANE_API_KEYS", "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    methods = """
    async def predict(self, request):
        here = f"/proc/{os.getpid()}"
        files = {each: os.readlink(f"{here}/fd/{each}") for each in os.listdir(f"{here}/fd")
                 if os.path.lexists(f"{here}/fd/{each}")}
        return {"environment": dict(os.environ), "files": sorted(files.values()),
                "command": open(f"{here}/cmdline").read(), "cwd": os.getcwd(),
                "nice": os.nice(0), "oom": open(f"{here}/oom_score_adj").read().strip(),
                "session": os.getsid(0) == os.getpid(), "path": sys.path[0]}
    """
    secret = tmp_path / "secret.txt"
    with secret.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        folder = tmp_path / "files"
        folder.mkdir()
        async with serving(folder, methods) as served:
            seen = await served.ask()
    assert "hush-hush" not in str(seen)
    allowed = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "LC_ALL", "LC_CTYPE"}
    assert set(seen["environment"]) <= allowed | {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
    assert seen["environment"]["LC_ALL"] == "C.UTF-8"
    kinds = {each.partition(":")[0] for each in seen["files"]}
    assert kinds <= {"/dev/null", "pipe", "socket", "anon_inode"}
    # Two at most are a pair of the event loop's own.
    assert sum(each.startswith("socket:") for each in seen["files"]) <= 3
    assert "shop/1" in seen["command"]
    assert (seen["cwd"], seen["path"]) == (str(folder), str(folder))
    niceness = min(19, os.nice(0) + 5)
    assert (seen["nice"], seen["oom"], seen["session"]) == (niceness, "1000", True)


async def test_end_of_a_pool_leaves_no_process(tmp_path: Path) -> None:
    pool = ProcessPool(spec_of(write(tmp_path, DOES)), ScriptedPlane(), CountedMetrics())
    await pool.start()
    (process,) = pool._keeper.processes
    served = Served(pool, ScriptedPlane(), CountedMetrics())
    job = served.submit(code("while True: pass"))
    child = psutil.Process(process.child.pid)
    await asyncio.sleep(0.2)
    await pool.close()
    with pytest.raises(errors.ShuttingDown):
        job.result()
    assert not child.is_running()


async def test_process_ended_by_a_real_time_signal_is_restarted(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES) as served:
        text = f"os.kill(os.getpid(), {int(signal.SIGRTMIN) + 6}); await asyncio.sleep(9)"
        assert await outcome(served, text) == "handler_died"
        assert await outcome(served, "") == "ok"


async def test_no_request_goes_to_a_process_that_has_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, processes=2) as served:
        first, second = served.pool._keeper.processes
        os.kill(first.child.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            while first._connection.is_open:
                await asyncio.sleep(0)
        assert await served.ask(code("")) == second.child.pid


async def test_pool_without_a_process_refuses_requests_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "PATIENCE_S", 0.3)
    marker = tmp_path / "marker"
    setup = f"def setup(self):\n    if os.path.exists({str(marker)!r}):\n        time.sleep(60)\n"
    async with serving(tmp_path, setup + DOES) as served:
        marker.touch()
        assert await outcome(served, "os._exit(7)") == "handler_died"
        waiting = served.submit(code(""), 0.2)
        assert served.pool.problem() is None
        with pytest.raises(errors.DeadlineExceeded):
            await settled(waiting)
        await served.until(lambda: served.pool.problem() is not None)
        assert not served.pool.works()
        with pytest.raises(errors.ModelNotReady, match="it exited with code 7"):
            served.submit()


async def test_code_that_some_callers_left_has_a_moment_to_return(tmp_path: Path) -> None:
    batch = """
    async def predict_batch(self, requests):
        return [each.json() for each in requests]
    """
    top = """
    from torchlane.handlers import process
    answer = process.Process._answer
    def only_others(self, number, content):
        if number != 1:
            answer(self, number, content)
    process.Process._answer = only_others
    """
    async with serving(tmp_path, batch, top=top, max_batch_size=2, concurrency=1) as served:
        first, second = served.submit(b"1"), served.submit(b"2")
        await asyncio.sleep(0.05)
        first.abandon()
        await settled(second)
        await served.until(lambda: served.metrics.causes == ["stuck"])


async def test_answer_with_a_status_that_has_no_body_ends_the_process(tmp_path: Path) -> None:
    top = """
    from torchlane.handlers import answers, encoding
    answers.encode_answer = lambda value, accept: (304, encoding.Encoded("text/plain", b"x"))
    """
    async with serving(tmp_path, DOES, top=top) as served:
        with pytest.raises(errors.HandlerDied, match="the status 304, which has no body"):
            await settled(served.submit(code("")))
