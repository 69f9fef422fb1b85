"""Models that are in use are loaded once, and freed with their last user."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.runtimes import base as runtimes
from models.runtimes.base import SharedModels, VariantFile
from models.runtimes.forms import load_form
from tests.artifacts import PICTURE, SHIFT, small_variant

CPU = torch.device("cpu")


class Loaded:
    """What a load returns."""


FILE = VariantFile.of(b"a file")


class TestShared:
    def test_equal_files_in_use_are_loaded_once(self) -> None:
        shared = SharedModels[Loaded]()
        first = shared.get(VariantFile.of(b"a file"), "how", lambda _: Loaded())
        assert shared.get(VariantFile.of(b"a file"), "how", lambda _: Loaded()) is first
        assert shared.get(VariantFile.of(b"a file"), "other", lambda _: Loaded()) is not first
        assert shared.get(VariantFile.of(b"another"), "how", lambda _: Loaded()) is not first

    def test_a_model_in_use_needs_no_file(self) -> None:
        def gone() -> contextlib.AbstractContextManager[str]:
            raise FileNotFoundError

        shared = SharedModels[Loaded]()
        first = shared.get(FILE, "how", lambda _: Loaded())
        assert shared.get(VariantFile(FILE.digest, gone), "how", lambda _: Loaded()) is first
        del first
        gc.collect()
        with pytest.raises(FileNotFoundError):
            shared.get(VariantFile(FILE.digest, gone), "how", lambda _: Loaded())

    def test_threads_load_a_file_once(self) -> None:
        shared, together = SharedModels[Loaded](), threading.Barrier(2)
        loads: list[bytes] = []
        found: list[Loaded] = []

        def load(path: str) -> Loaded:
            loads.append(Path(path).read_bytes())
            return Loaded()

        def work() -> None:
            together.wait()
            found.append(shared.get(FILE, "how", load))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loads == [b"a file"]
        assert found[0] is found[1]

    @pytest.mark.parametrize("may_share", [True, False])
    def test_whether_a_file_may_be_shared_is_asked_once(self, may_share: bool) -> None:
        shared = SharedModels[Loaded]()
        asked: list[Loaded] = []

        def ask(model: Loaded) -> bool:
            asked.append(model)
            return may_share

        first = shared.get(FILE, "how", lambda _: Loaded(), ask)
        second = shared.get(FILE, "how", lambda _: Loaded(), ask)
        assert (first is second) == may_share
        del first, second
        gc.collect()
        assert shared.get(FILE, "how", lambda _: Loaded(), ask)
        assert len(asked) == 1

    def test_a_load_that_hangs_delays_others_for_a_limited_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runtimes, "PATIENCE_S", 0.01)
        shared, hangs, ends = SharedModels[Loaded](), threading.Event(), threading.Event()

        def hang(_: str) -> Loaded:
            hangs.set()
            ends.wait()
            return Loaded()

        thread = threading.Thread(target=shared.get, args=(FILE, "how", hang))
        thread.start()
        hangs.wait()
        try:
            assert shared.get(FILE, "how", lambda _: Loaded())
        finally:
            ends.set()
            thread.join()

    def test_a_load_that_failed_is_tried_again(self) -> None:
        shared = SharedModels[Loaded]()

        def fail(_: str) -> Loaded:
            raise RuntimeError

        for _ in range(2):
            with pytest.raises(RuntimeError):
                shared.get(FILE, "how", fail)
        assert shared.get(FILE, "how", lambda _: Loaded())


@pytest.mark.parametrize(
    ("variant", "optimized", "weights"),
    [
        *((each, False, lambda form: form) for each in ("script", "int8", "openvino", "onnx")),
        ("script", True, lambda form: form),
        ("compiled", False, lambda form: form._package),
    ],
)
def test_forms_in_use_share_their_weights(
    variant: str, optimized: bool, weights: Callable[[Any], object]
) -> None:
    made = small_variant(variant)

    def load() -> object:
        files = [VariantFile.of(made.data)]
        return weights(
            load_form(files, made.entry.format, [PICTURE, SHIFT], CPU, optimized=optimized)
        )

    first, second = load(), load()
    assert first is second
    kept = weakref.ref(first)
    del first, second
    gc.collect()
    assert kept() is None
