"""Which forms may serve: all of one precision, as the artifact or the operator says."""

from __future__ import annotations

import re

import pytest

from app.backends.selection import (
    PinnedVariantMissing,
    Preference,
    Selection,
    runs_on,
    select,
    stored_steps,
)
from models.choices import Precision
from models.manifest import Manifest, NativeCode
from models.plan import DevicePlan
from models.processor import Processor
from models.tensors import Tolerance
from tests.unit.models.manifests import (
    CLOSE,
    XEON,
    form,
    make_manifest,
    make_plan,
    make_variant,
    steps,
)

NATIVE = NativeCode(architecture="x86_64", requires=("avx2",))
WIDE = Tolerance(absolute=1e-6, relative=0.1, of_range=0.2)
VARIANTS = {
    "script": make_variant(optimized=True, device_kinds=("cpu", "cuda")),
    "compiled": make_variant("compiled.pt2", native=NATIVE, tolerance=WIDE),
    "bf16": make_variant("bf16.pt", "bf16", optimized=True, device_kinds=("cpu", "cuda")),
    "int8": make_variant("int8.pt", "int8", tolerance=WIDE),
}
PLAN = make_plan(
    {"float32": steps((4, form("compiled")), (64, form(optimized=True)))},
    precision="float32",
    torch_version="2.13.0+cpu",
)


def manifest(default: Precision | None = "float32") -> Manifest:
    """Three precisions; the plan's default, or no plan at all."""
    plan = PLAN.model_copy(update={"precision": default}) if default else None
    return make_manifest(variants=VARIANTS, plan=plan)


class TestSelect:
    @pytest.mark.parametrize(
        ("default", "preference", "precision", "forms"),
        [
            ("float32", Preference(), "float32", ["script", "script+", "compiled"]),
            (None, Preference(), "float32", ["script", "script+", "compiled"]),
            ("int8", Preference(), "int8", ["int8"]),
            ("float32", Preference(precision="bf16"), "bf16", ["bf16", "bf16+"]),
            ("int8", Preference(precision="float32"), "float32", ["script", "script+", "compiled"]),
            ("float32", Preference("script"), "float32", ["script", "script+"]),
            ("float32", Preference("int8"), "int8", ["int8"]),
            ("float32", Preference("compiled", "float32"), "float32", ["compiled"]),
        ],
    )
    def test_candidates_share_a_precision_in_preference_order(
        self, default: Precision | None, preference: Preference, precision: str, forms: list[str]
    ) -> None:
        found = select(manifest(default), preference)
        assert found.precision == precision
        assert found.variant == preference.variant
        names = [each.variant + "+" * each.optimized for each in found.candidates]
        assert names == forms
        for each, variant in found.candidates.items():
            assert variant == VARIANTS[each.variant]
            assert variant.precision == precision

    def test_different_answers_have_different_labels(self) -> None:
        """The label is part of the cache key."""
        preferences = [
            *(Preference(variant) for variant in VARIANTS),
            *(Preference(precision=precision) for precision in ("float32", "bf16", "int8")),
        ]
        labels = [select(manifest(), preference).label for preference in preferences]
        assert len(set(labels)) == len(preferences)
        assert select(manifest(), Preference()).label == "plan:float32"
        assert select(manifest("int8"), Preference()).label == "plan:int8"

    @pytest.mark.parametrize(
        ("preference", "wanted"),
        [
            (Preference("script"), CLOSE),
            (Preference("compiled"), WIDE),
            # The widest of each share: any of the candidates may answer.
            (Preference(), Tolerance(absolute=1e-5, relative=0.1, of_range=0.2)),
        ],
    )
    def test_tolerance_covers_all_candidates(
        self, preference: Preference, wanted: Tolerance
    ) -> None:
        assert select(manifest(), preference).tolerance == wanted

    @pytest.mark.parametrize(
        ("preference", "message"),
        [
            (
                Preference("trace"),
                (
                    "tiny/3 has no variant 'trace' (TORCHLANE_VARIANT); it has: script, compiled, "
                    "bf16, int8"
                ),
            ),
            (
                Preference("int8", "bf16"),
                (
                    "tiny/3: variant 'int8' (TORCHLANE_VARIANT) computes in int8, "
                    "TORCHLANE_PLAN_PRECISION says bf16"
                ),
            ),
        ],
        ids=["variant", "both"],
    )
    def test_missing_variant_error_lists_the_variants(
        self, preference: Preference, message: str
    ) -> None:
        with pytest.raises(PinnedVariantMissing, match=f"^{re.escape(message)}$"):
            select(manifest(), preference)

    def test_missing_precision_falls_back_to_the_default(self) -> None:
        asked = select(manifest(), Preference(precision="fp16"))
        assert asked == select(manifest(), Preference())


class TestKinds:
    """A precision counts only where every device that serves can run it."""

    def manifest(self) -> Manifest:
        whole = manifest()
        bf16 = whole.variants["bf16"].model_copy(update={"device_kinds": ("cuda",)})
        return whole.model_copy(update={"variants": {**whole.variants, "bf16": bf16}})

    def test_precision_unsupported_by_the_device_falls_back(self) -> None:
        chosen = Preference(precision="bf16")
        assert select(self.manifest(), chosen, {"cuda"}).precision == "bf16"
        assert select(self.manifest(), chosen, {"cpu"}).precision == "float32"
        assert select(self.manifest(), chosen, {"cpu", "cuda"}).precision != "bf16"


class TestRunsOn:
    def test_cuda_runs_no_form_optimized_at_load(self) -> None:
        assert list(runs_on(select(manifest(), Preference()), "cuda")) == [form()]
        assert list(runs_on(select(manifest(), Preference("bf16")), "cuda")) == [form("bf16")]


class TestStoredSteps:
    wanted = PLAN.devices[0].steps["float32"]

    def ask(
        self,
        plan: DevicePlan | None = PLAN.devices[0],
        selection: Selection | None = None,
        here: Processor = XEON,
        torch_version: str = "2.13.0",
        largest: int = 64,
    ) -> tuple[object, str]:
        chosen = selection or select(manifest(), Preference())
        return stored_steps(plan, chosen, here, torch_version, largest)

    @pytest.mark.parametrize("largest", [1, 32, 64])
    @pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
    def test_steps_apply_where_they_were_measured(self, largest: int, version: str) -> None:
        assert self.ask(torch_version=version, largest=largest) == (self.wanted, "")

    def test_not_used_for_a_pinned_variant(self) -> None:
        pinned = select(manifest(), Preference("script"))
        assert self.ask(selection=pinned) == (None, "variant 'script' is pinned")

    def test_not_used_if_absent(self) -> None:
        assert self.ask(plan=None) == (None, "the artifact has no plan of float32 for cpu")
        int8 = select(manifest(), Preference(precision="int8"))
        assert self.ask(selection=int8) == (None, "the artifact has no plan of int8 for cpu")
