"""Warnings that are suppressed permanently."""

from __future__ import annotations

import threading
import warnings

import pytest

from models.system.quiet import ignore_warnings


def warn(module: str, text: str = "something") -> None:
    warnings.warn_explicit(text, UserWarning, f"{module}.py", 1, module=module)


def test_only_warnings_of_the_module_are_ignored() -> None:
    ignore_warnings(module=r"noisy\.")
    warn("noisy.part")
    with pytest.raises(UserWarning):
        warn("noisy")
    with pytest.raises(UserWarning):
        warn("other.noisy.part")


def test_only_warnings_with_the_text_are_ignored() -> None:
    ignore_warnings(message="it rains")
    warn("anywhere", "it rains again")
    with pytest.raises(UserWarning):
        warn("anywhere", "today it rains")


def test_a_second_call_changes_nothing() -> None:
    ignore_warnings(module=r"noisy\.", message="it rains")
    before = list(warnings.filters)
    ignore_warnings(module=r"noisy\.", message="it rains")
    assert list(warnings.filters) == before


def test_filter_is_set_again_after_other_filters() -> None:
    ignore_warnings(module=r"noisy\.")
    warnings.simplefilter("error")
    with pytest.raises(UserWarning):
        warn("noisy.part")
    ignore_warnings(module=r"noisy\.")
    warn("noisy.part")


def test_warnings_stay_ignored_after_filters_are_restored() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def load() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inside.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=load)
    thread.start()
    assert inside.wait(60)
    ignore_warnings(module=r"noisy\.")
    go_on.set()
    thread.join()
    with pytest.raises(UserWarning):  # nor does it leave warnings off
        warn("other")
    ignore_warnings(module=r"noisy\.")  # as every use does
    warn("noisy.part")
