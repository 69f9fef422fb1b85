"""What the metrics must say, or a figure does not count."""

from __future__ import annotations

import pytest

from loadtests.bench.answers import CheckError
from loadtests.bench.counters import Counters, check, check_compiled, parsed

PAGE = """\
# TYPE torchlane_items_computed counter
torchlane_items_computed_total{model="digits",version="1"} 40
torchlane_items_computed_total{model="digits",version="2"} 2
torchlane_items_computed_total{model="other",version="1"} 7
# TYPE torchlane_cache_lookups counter
torchlane_cache_lookups_total{model="digits",result="hit",version="1"} 5
torchlane_cache_lookups_total{model="digits",result="miss",version="1"} 42
torchlane_cache_lookups_total{model="digits",result="joined",version="1"} 1
"""


def test_counters_of_one_model_are_read() -> None:
    assert parsed(PAGE, "digits") == Counters(computed=42, hits=5, joined=1)
    assert Counters(50, 6, 1).since(Counters(42, 5, 1)) == Counters(8, 1, 0)
    with pytest.raises(CheckError, match="has no torchlane_items_computed_total of absent"):
        parsed(PAGE, "absent")


def test_compiled_server_must_report_it() -> None:
    page = '# TYPE torchlane_build_info gauge\ntorchlane_build_info{{compiled="{}"}} 1\n'
    check_compiled(page.format("true"))
    for other in (page.format("false"), PAGE):
        with pytest.raises(CheckError, match="must say"):
            check_compiled(other)


@pytest.mark.parametrize("computed", [100, 116, 132])
def test_requests_cut_off_may_or_may_not_be_computed(computed: int) -> None:
    check(Counters(computed, 0, 0), least=100, most=132, cached=False)


@pytest.mark.parametrize(
    "added", [Counters(99, 0, 0), Counters(133, 0, 0), Counters(120, 1, 0), Counters(120, 0, 1)]
)
def test_answer_not_computed_is_detected(added: Counters) -> None:
    with pytest.raises(CheckError, match="100 items were answered and at most 132 sent"):
        check(added, least=100, most=132, cached=False)


@pytest.mark.parametrize("added", [Counters(1, 100, 0), Counters(0, 99, 0), Counters(0, 100, 1)])
def test_answer_not_cached_is_detected(added: Counters) -> None:
    check(Counters(0, 100, 0), least=100, most=132, cached=True)
    with pytest.raises(CheckError, match="should have been in the cache"):
        check(added, least=100, most=132, cached=True)
