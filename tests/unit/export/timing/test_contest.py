"""What is made of the times of all shapes and sizes; no clock is read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from export.timing.contest import Contest, Key, contests
from export.timing.tune import plan_steps
from models.manifest import Manifest, NativeCode
from models.plan import Form
from models.timing import QUIET, Timing
from tests.unit.models.manifests import make_manifest, make_variant, steps, with_variants

SCRIPT, COMPILED, INT8 = Form(variant="script"), Form(variant="compiled"), Form(variant="int8")
SLOW_S, FAST_S = 1.0, 1e-3


@pytest.fixture
def manifest() -> Manifest:
    native = NativeCode(architecture="x86_64", requires=())
    variants = {
        "script": make_variant(),
        "compiled": make_variant("compiled.pt2", native=native),
        "int8": make_variant("int8.pt", "int8"),
    }
    return with_variants(make_manifest(), **variants)


def timing(
    *times: tuple[Form, Sequence[float]], disturbed: float = 0.0, share: float = 0.0
) -> Timing[Key]:
    """Per form its times by shape, the same in each of three rounds."""
    seconds = {
        (form, shape): [time] * 3 for form, shapes in times for shape, time in enumerate(shapes)
    }
    return Timing(
        seconds, {key: [disturbed] * 3 for key in seconds}, took_s=10, waited_s=10 * share
    )


def measured(manifest: Manifest, **sizes: Timing[Key]) -> Contest:
    """By `of_1=...`."""
    contest = Contest(manifest)
    for name, each in sizes.items():
        contest.add(int(name.removeprefix("of_")), each)
    return contest


def test_times_over_shapes_give_their_mean(manifest: Manifest) -> None:
    contest = measured(manifest, of_1=timing((SCRIPT, [1.0, 2.0, 6.0])))
    assert contest.rounds == {1: {SCRIPT: [3.0] * 3}}


def test_forms_compete_within_their_precision(manifest: Manifest) -> None:
    rounds = {1: {SCRIPT: [SLOW_S], COMPILED: [FAST_S], INT8: [SLOW_S]}}
    assert contests(manifest, rounds) == {
        "float32": {1: {SCRIPT: [SLOW_S], COMPILED: [FAST_S]}},
        "int8": {1: {INT8: [SLOW_S]}},
    }


class TestLoad:
    def test_quiet_machine_is_not_mentioned(self, manifest: Manifest) -> None:
        contest = measured(manifest, of_1=timing((SCRIPT, [1.0]), share=QUIET))
        assert (contest.kept_waiting, contest.unsettled) == (None, ())

    def test_waiting_share_is_measured(self, manifest: Manifest) -> None:
        contest = measured(
            manifest,
            of_1=timing((SCRIPT, [1.0]), share=0.25),
            of_2=timing((SCRIPT, [1.0]), share=0.5),
        )
        assert (contest.kept_waiting, contest.unsettled) == (0.375, ())

    @pytest.mark.parametrize(("share", "unsettled"), [(0.0, ()), (0.25, (1,))])
    def test_unclear_win_under_load_is_unsettled(
        self, manifest: Manifest, share: float, unsettled: tuple[int, ...]
    ) -> None:
        times = timing((SCRIPT, [FAST_S]), (COMPILED, [FAST_S]), share=share)
        times.seconds[COMPILED, 0][:] = [share * FAST_S for share in (0.9, 0.9, 1.1)]
        assert measured(manifest, of_1=times).unsettled == unsettled

    @pytest.mark.parametrize(
        ("script_s", "compiled_s", "unsettled"),
        [
            (1.0, FAST_S, ()),  # it won every round, whatever it waited
            (FAST_S, FAST_S, (2,)),
        ],
    )
    def test_disturbed_close_forms_are_unsettled(
        self,
        manifest: Manifest,
        script_s: float,
        compiled_s: float,
        unsettled: tuple[int, ...],
    ) -> None:
        times = ((SCRIPT, [script_s]), (COMPILED, [compiled_s]))
        contest = measured(manifest, of_1=timing(*times), of_2=timing(*times, disturbed=0.5))
        assert contest.unsettled == unsettled


class TestStops:
    """The larger sizes of a slow model."""

    def test_slow_proportional_forms_stop_the_timing(self, manifest: Manifest) -> None:
        one = timing((SCRIPT, [SLOW_S]), (COMPILED, [SLOW_S]))
        two = timing((SCRIPT, [2 * SLOW_S]), (COMPILED, [2 * SLOW_S]))
        assert not Contest(manifest).can_stop(1)
        assert not measured(manifest, of_1=one).can_stop(2)
        contest = measured(manifest, of_1=one, of_2=two)
        assert contest.can_stop(4)
        assert plan_steps(contest, 64) == {"float32": steps((64, SCRIPT))}

    def test_several_shapes_multiply_the_expected_time(self, manifest: Manifest) -> None:
        def at(size: int, shapes: int) -> Timing[Key]:
            return timing((SCRIPT, [0.1 * size] * shapes))

        for shapes, stops in ((1, False), (2, True)):
            contest = measured(manifest, of_1=at(1, shapes), of_2=at(2, shapes))
            assert contest.can_stop(4) is stops
