"""A plan from measurements of every form at every size, with one precision by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from export.artifact import digest_of
from export.errors import ExportError, UsageError
from export.timing import contest, tune
from export.timing.contest import EVEN_S, WARM_AGAIN, Contest, Key
from export.timing.tune import TuneOptions
from models.manifest import Manifest, NativeCode, Variant
from models.plan import Form, Plan
from models.processor import Processor, machine
from models.runtimes.forms import Forward
from models.stopping import SLOW_S
from models.timing import WARM_RUNS, Timing, TimingLimits
from tests.artifacts import write_artifact
from tests.unit.export.definitions import Moody, quiet
from tests.unit.export.measured import on_cpu
from tests.unit.models.manifests import make_manifest, with_variants

CPU = torch.device("cpu")
SCRIPT = make_manifest().variants["script"]
COMPILED = SCRIPT.model_copy(
    update={
        "file": "compiled.pt2",
        "format": "aotinductor",
        "native": NativeCode(architecture="pdp11", requires=("eis",)),
    }
)
INT8 = SCRIPT.model_copy(update={"file": "int8.pt", "precision": "int8"})


def read(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / "manifest.json").read_bytes())


@pytest.fixture
def artifact(tmp_path: Path) -> tuple[Path, Manifest]:
    return doubles(tmp_path)


def doubles(root: Path) -> tuple[Path, Manifest]:
    """A model that doubles, in a plain and an optimized form, and once more as int8."""
    folder = write_artifact(root, "double")
    manifest = read(folder)
    script = manifest.variants["script"]
    script = script.model_copy(update={"optimized": script.parity})
    int8 = script.model_copy(update={"precision": "int8", "optimized": None})
    return folder, with_variants(manifest, script=script, int8=int8)


def measure(artifact: tuple[Path, Manifest], options: TuneOptions) -> Plan:
    return tune.measure(*artifact, options, quiet)


class TestMeasure:
    def test_every_form_is_timed_at_every_size(self, artifact: tuple[Path, Manifest]) -> None:
        plan = measure(artifact, TuneOptions(max_batch=6))
        device = on_cpu(plan)
        assert [(each.form, each.precision) for each in device.times] == [
            (Form(variant="script"), "float32"),
            (Form(variant="script", optimized=True), "float32"),
            (Form(variant="int8"), "int8"),
        ]
        for each in device.times:
            assert each.batch_sizes == (1, 2, 4, 6)
            for low, middle, high in zip(each.low_us, each.median_us, each.high_us, strict=True):
                assert 0 < low <= middle <= high

    def test_forms_of_a_large_model_are_timed_in_pairs(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("models.manifest.LARGE_BYTES", 1)
        folder, manifest = artifact
        script = manifest.variants["script"]
        twin = script.model_copy(update={"optimized": None})
        manifest = with_variants(manifest, **manifest.variants, twin=twin)
        together: list[list[str]] = []

        def noted(manifest: Manifest, forms: Mapping[Form, Forward], *rest: Any) -> Timing[Key]:
            together.append([str(each) for each in forms])
            return contest.time_forms(manifest, forms, *rest)

        monkeypatch.setattr(tune, "time_forms", noted)
        plan = measure((folder, manifest), TuneOptions(max_batch=2))
        device = on_cpu(plan)
        assert {str(each.form) for each in device.times} == {
            *("script", "script, optimized at load", "twin", "int8")
        }
        assert all(len(each) <= 2 for each in together)
        assert together[0] == ["int8"]  # the default precision comes last, and stays loaded
        for steps in device.steps.values():
            assert [step.up_to for step in steps] == [2]  # one form for all sizes

    @pytest.mark.parametrize("threads", [1, 2])
    def test_processor_is_recorded_and_threads_are_restored(
        self, artifact: tuple[Path, Manifest], threads: int
    ) -> None:
        before = torch.get_num_threads()
        device = on_cpu(measure(artifact, TuneOptions(max_batch=1, threads=threads)))
        assert (device.processor.kind, device.processor.threads) == ("cpu", threads)
        assert device.torch_version == torch.__version__
        assert torch.get_num_threads() == before

    def test_progress_is_reported(self, artifact: tuple[Path, Manifest]) -> None:
        calls: list[tuple[int, int, str]] = []
        tune.measure(*artifact, TuneOptions(max_batch=3), lambda *each: calls.append(each))
        assert calls[:3] == [(n, 3, f"cpu, batch {size}") for n, size in ((1, 1), (2, 2), (3, 3))]

    def test_slow_forms_are_timed_until_growth_is_proportional(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = iter((1, 2, 4))

        def timed(runs: Iterable[Key], *_: object, **__: object) -> Timing[Key]:
            size = next(sizes)
            return Timing({key: [1.0 * size] * 3 for key in runs}, {})

        monkeypatch.setattr("export.timing.contest.take_turns", timed)
        calls: list[tuple[int, int, str]] = []
        options = TuneOptions(max_batch=64)
        device = on_cpu(tune.measure(*artifact, options, lambda *each: calls.append(each)))
        assert {times.batch_sizes for times in device.times} == {(1, 2)}
        assert {steps[-1].up_to for steps in device.steps.values()} == {64}
        assert calls[-1] == (
            7,
            7,
            "cpu, batches above 2: not timed, as they change no plan",
        )

    def test_every_second_size_of_a_slow_model_is_enough(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes, warm = iter((1, 2, 8, 32, 64)), []

        def timed(runs: Iterable[Key], limits: TimingLimits, **_: object) -> Timing[Key]:
            warm.append(limits.warm_runs)
            seconds = EVEN_S * next(sizes) ** 0.5  # larger batches still gain
            return Timing({key: [seconds] * 3 for key in runs}, {})

        monkeypatch.setattr("export.timing.contest.take_turns", timed)
        device = on_cpu(tune.measure(*artifact, TuneOptions(max_batch=64), quiet))
        assert {times.batch_sizes for times in device.times} == {(1, 2, 8, 32, 64)}
        assert warm == [WARM_RUNS, *[WARM_AGAIN] * 4]

    def test_a_slow_form_that_has_lost_is_timed_no_more(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def timed(runs: Iterable[Key], *_: object, **__: object) -> Timing[Key]:
            times = {(form, shape): [SLOW_S * (1 + form.optimized)] * 3 for form, shape in runs}
            return Timing(times, {})

        monkeypatch.setattr("export.timing.contest.take_turns", timed)
        device = on_cpu(tune.measure(*artifact, TuneOptions(max_batch=2), quiet))
        sizes = {times.form.optimized: times.batch_sizes for times in device.times}
        assert sizes == {False: (1, 2), True: (1,)}

    def test_plan_made_under_load_records_it(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At batch 2 most samples were disturbed, and the faster form did not win all of them."""
        busy = iter((False, True))
        names = {False: "script", True: "script, optimized at load"}

        def timed(runs: Iterable[Key], *_: object, **__: object) -> Timing[Key]:
            wait = 0.5 if next(busy) else 0.0
            seconds = {
                (form, shape): [0.5, 0.5, 0.5, 0.5, 1.1] if form.optimized else [1.0] * 5
                for form, shape in runs
            }
            return Timing(seconds, {key: [wait] * 5 for key in seconds}, 1.0, wait)

        monkeypatch.setattr("export.timing.contest.take_turns", timed)
        device = on_cpu(measure(artifact, TuneOptions(max_batch=2)))
        assert (device.kept_waiting, device.unsettled) == (0.25, (2,))
        assert [(step.up_to, str(step.form)) for step in device.steps["float32"]] == [
            (2, names[True])  # it had its place already
        ]
        busy = iter((True, False))
        device = on_cpu(measure(artifact, TuneOptions(max_batch=2)))
        assert [(step.up_to, str(step.form)) for step in device.steps["float32"]] == [
            (1, names[False]),
            (2, names[True]),
        ]

    def test_skipped_machine_code_is_reported(self, artifact: tuple[Path, Manifest]) -> None:
        folder, manifest = artifact
        manifest = with_variants(manifest, compiled=COMPILED, **manifest.variants)
        notes: list[str] = []
        options = TuneOptions(max_batch=1)
        plan = tune.measure(folder, manifest, options, lambda *each: notes.append(each[2]))
        assert {each.form.variant for each in plan.devices[0].times} == {"script", "int8"}
        assert notes[0].startswith("without compiled: compiled.pt2 is compiled for pdp11")

    def test_an_unloadable_package_is_left_out(self, artifact: tuple[Path, Manifest]) -> None:
        """As if the temporary folder forbids execution."""
        folder, manifest = artifact
        (folder / "compiled.pt2").write_bytes(b"garbage")
        native = NativeCode(architecture=machine(), requires=())
        compiled = COMPILED.model_copy(
            update={"native": native, "torch_version": torch.__version__}
        )
        files = {**manifest.files, "compiled.pt2": digest_of(folder / "compiled.pt2")}
        manifest = manifest.model_copy(update={"files": files})
        manifest = with_variants(manifest, compiled=compiled, **manifest.variants)
        notes: list[str] = []
        options = TuneOptions(max_batch=1)
        plan = tune.measure(folder, manifest, options, lambda *each: notes.append(each[2]))
        device = on_cpu(plan)
        assert {each.form.variant for each in device.times} == {"script", "int8"}
        assert notes[0].startswith("compiled cannot be loaded here: ")

    def test_no_runnable_variant_is_an_error(self, artifact: tuple[Path, Manifest]) -> None:
        folder, manifest = artifact
        with pytest.raises(ExportError, match="no variant runs on this machine, so there is"):
            measure((folder, with_variants(manifest, compiled=COMPILED)), TuneOptions())

    def test_unreadable_file_is_an_error(self, artifact: tuple[Path, Manifest]) -> None:
        (artifact[0] / "script.pt").write_bytes(b"garbage")
        before = torch.get_num_threads()
        with pytest.raises(ExportError, match="script cannot be loaded here: "):
            measure(artifact, TuneOptions(threads=2))
        assert torch.get_num_threads() == before

    def test_failing_batch_is_an_error(self, tmp_path: Path) -> None:
        folder = write_artifact(tmp_path, "moody", module=Moody())
        message = r"^a batch of 4 cannot be timed: ValueError: more than three$"
        with pytest.raises(ExportError, match=message):
            tune.measure(folder, read(folder), TuneOptions(max_batch=8), quiet)

    def test_a_precision_without_large_forms_is_timed_together(
        self, artifact: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, manifest = artifact
        size = manifest.files[manifest.variants["script"].file].bytes
        monkeypatch.setattr("models.manifest.LARGE_BYTES", size)
        int8 = manifest.variants["int8"]
        larger = manifest.variants["script"].model_copy(update={"later_stages": ("manifest.json",)})
        small = dict.fromkeys(("one", "two", "three"), int8)
        digest = digest_of(folder / "manifest.json")
        manifest = with_variants(manifest, script=larger, **small).model_copy(
            update={"files": manifest.files | {"manifest.json": digest}}
        )
        loaded: dict[Form, Forward] = {}
        together: list[list[str]] = []

        def time(forms: dict[Form, Forward]) -> Contest:
            together.append([str(each) for each in forms])
            return Contest(manifest, {1: {form: [1.0, 1.0, 1.0] for form in forms}})

        def load(form: Form) -> dict[Form, Forward]:
            return {form: lambda *tensors: tensors}

        tune._knock_out(manifest, "int8", loaded, load, time)
        assert together[-1] == ["one", "two", "three"]
        assert list(map(str, loaded)) == ["one", "two", "three"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """Up to 4 on the CPU, up to 8 on another kind of device: do not change."""
    folder, manifest = result = doubles(tmp_path_factory.mktemp("planned"))
    plan = measure(result, TuneOptions(max_batch=4))
    device = measure(result, TuneOptions(max_batch=8)).devices[0]
    elsewhere = device.model_copy(
        update={"processor": Processor(kind="cuda", name="a large one", threads=1)}
    )
    plan = plan.model_copy(update={"devices": (elsewhere, *plan.devices)})
    return folder, manifest.model_copy(update={"plan": plan})


class TestRetune:
    """An artifact that has a plan: measurements from elsewhere are kept."""

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_plan_of_an_absent_device_is_kept(self, planned: tuple[Path, Manifest]) -> None:
        assert planned[1].plan is not None
        again = measure(planned, TuneOptions(max_batch=1))
        assert [device.processor.kind for device in again.devices] == ["cpu", "cuda"]
        assert again.on("cuda") == planned[1].plan.on("cuda")
        assert again.on("cpu") != planned[1].plan.on("cpu")

    def test_previous_largest_size_is_the_default(self, planned: tuple[Path, Manifest]) -> None:
        for expected, sizes in ((None, (1, 2, 4)), (2, (1, 2))):
            device = on_cpu(measure(planned, TuneOptions(max_batch=expected)))
            assert device.times[0].batch_sizes == sizes


class TestPrecision:
    @pytest.mark.parametrize(
        ("variants", "expected", "chosen"),
        [
            ({"script": SCRIPT, "int8": INT8}, None, "float32"),
            ({"int8": INT8}, None, "int8"),
            ({"script": SCRIPT, "int8": INT8}, "int8", "int8"),
        ],
    )
    def test_float32_is_the_default_precision(
        self, variants: dict[str, Variant], expected: None, chosen: str
    ) -> None:
        assert tune.default_precision(variants, expected) == chosen

    def test_missing_precision_is_refused(self, artifact: tuple[Path, Manifest]) -> None:
        message = "^--plan-precision bf16: no variant has it; there are: float32, int8$"
        with pytest.raises(UsageError, match=message):
            measure(artifact, TuneOptions(precision="bf16"))

    def test_plan_records_the_precision(self, artifact: tuple[Path, Manifest]) -> None:
        assert measure(artifact, TuneOptions(max_batch=1)).precision == "float32"
        expected = TuneOptions(max_batch=1, precision="int8")
        assert measure(artifact, expected).precision == "int8"
