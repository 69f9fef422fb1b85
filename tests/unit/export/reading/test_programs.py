"""Programs of torch.export: read as plain modules, and nothing in a hostile file is ever run."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from export.errors import ExportError
from export.reading import programs
from export.reading.programs import read_program
from export.variants.base import NotApplicable, Subject
from export.variants.half import Half
from export.variants.int8 import Int8
from export.variants.torchscript import TorchScript, in_python, to_torchscript
from models.choices import Precision
from models.definitions.definition import Definition
from tests.unit.export.definitions import loaded, of_vectors, proved, subject
from tests.unit.export.torchscripts import mar, run, written

Change = Callable[[dict[str, Any]], None]


class Pooled(nn.Module):
    """ids, mask [n, t] -> vector [n, 8] and score [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.linear = nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        weights = mask.to(torch.float32).unsqueeze(-1)
        mean = (self.table(ids) * weights).sum(1) / weights.sum(1)
        return {"vector": mean, "score": self.linear(mean)}


class Pictures(nn.Module):
    """x [n, 2, 6, 6] -> [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.flat = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.flat(torch.relu(self.wide(x))).mean(dim=(2, 3))
        return output


class InPlace(nn.Module):
    """Changes tensors, and views of them, by operators whose results it does not use."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, :1].mul_(0.5)
        y.flatten().add_(1)
        y[:, 1] = 0
        return y


class Repeating(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, z = x + 1, x * 2
        return y, z, y


class Net(nn.Module):
    """x [n, 2] -> [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2048), nn.Linear(2048, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.relu(self.first(x)))
        return output


def exported(module: nn.Module, *example: Tensor, seq: bool = False) -> bytes:
    batch = torch.export.Dim("batch", min=1, max=4096)
    sizes: dict[int, Any] = {0: batch}
    if seq:
        sizes[1] = torch.export.Dim("seq", min=1, max=16)
    program = torch.export.export(module, example, dynamic_shapes=tuple(sizes for _ in example))
    return saved(program)


def saved(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pooled() -> tuple[nn.Module, bytes]:
    torch.manual_seed(1)
    module = Pooled().eval()
    return module, exported(module, torch.ones(3, 5).long(), torch.ones(3, 5).long(), seq=True)


@pytest.fixture(scope="module")
def plain() -> bytes:
    return exported(Net().eval(), torch.zeros(3, 2))


def changed(
    data: bytes, change: Change | None = None, files: Mapping[str, bytes | None] | None = None
) -> bytes:
    """The archive with another model.json, and with other files; None: without them."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        content = {name.removeprefix("archive/"): old.read(name) for name in old.namelist()}
        if change is not None:
            model = json.loads(content["models/model.json"])
            change(model)
            content["models/model.json"] = json.dumps(model).encode()
        for name, value in (content | dict(files or {})).items():
            if value is not None:
                new.writestr(f"archive/{name}", value)
    return made.getvalue()


class Touch:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class TestRead:
    def test_output_names_and_input_bounds_are_kept(self, pooled: tuple[nn.Module, bytes]) -> None:
        module, data = pooled
        program = read_program(data, "it.pt2")
        assert program.inputs == ("ids=int64[-1,1<=n<=16]", "mask=int64[-1,1<=n<=16]")
        for shape in ((4, 7), (1, 1)):
            ids, mask = torch.randint(0, 30, shape), torch.ones(shape).long()
            expected, got = module(ids, mask), program.module(ids, mask)
            assert list(got) == ["vector", "score"]
            for name in expected:
                torch.testing.assert_close(got[name], expected[name])

    def test_operators_become_module_layers(self) -> None:
        torch.manual_seed(2)
        module = Pictures().eval()
        made = read_program(exported(module, torch.zeros(3, 2, 6, 6)), "it.pt2").module
        layers = [each for each in made.modules() if isinstance(each, nn.Conv2d)]
        assert [(each.groups, each.bias is None) for each in layers] == [(2, False), (1, True)]
        x = torch.randn(2, 2, 6, 6)
        torch.testing.assert_close(made(x), module(x))

    @pytest.mark.parametrize("module", [InPlace(), Repeating()])
    def test_answers_match_the_program(self, module: nn.Module) -> None:
        x = torch.randn(3, 2, 6, 6)
        result = read_program(exported(module, x.clone()), "it.pt2").module
        for form in (result, torch.jit.freeze(to_torchscript(result, (), "script"))):
            torch.testing.assert_close(form(x.clone()), module(x.clone()))

    def test_arguments_may_have_any_form(self) -> None:
        """Tensors by name and in a dict are inputs; a number, a text and None are not.

        fx renames arguments that are called as a builtin, and a text may be called as an input.
        """

        class Scaled(nn.Module):
            def forward(
                self,
                x: dict[str, Tensor],
                max: int,
                mode: str,
                y: Tensor | None = None,
                *,
                scale: Tensor,
            ) -> Tensor:
                return (x["a"] - x["b"]) ** max * scale if mode == "scale" and y is None else x["a"]

        a, b, scale = torch.randn(3, 3, 2)
        sizes = {0: torch.export.Dim("batch")}
        program = torch.export.export(
            *(Scaled(), ({"a": a, "b": b}, 3, "scale", None), {"scale": scale}),
            dynamic_shapes={
                "x": {"a": sizes, "b": sizes},
                "max": None,
                "mode": None,
                "y": None,
                "scale": sizes,
            },
        )
        result = read_program(saved(program), "it.pt2")
        assert result.inputs == tuple(f"{name}=float32[-1,2]" for name in ("x_a", "x_b", "scale"))
        expected = (a - b) ** 3 * scale
        for form in (result.module, result.original):
            assert form is not None
            torch.testing.assert_close(form(a, b, scale), expected)

    def test_an_output_that_is_not_a_tensor_is_rejected(self) -> None:
        class Counting(nn.Module):
            def forward(self, x: Tensor) -> tuple[Tensor, int]:
                return x + 1, 7

        with pytest.raises(ExportError, match="returns 7, which is not a tensor"):
            read_program(exported(Counting(), torch.zeros(3, 2)), "it.pt2")

    def test_a_fixed_batch_is_rejected(self) -> None:
        data = saved(torch.export.export(Net().eval(), (torch.zeros(3, 2),)))
        with pytest.raises(ExportError, match="accepts 'x' only in batches of 3: export it with a"):
            read_program(data, "it.pt2")

    def test_another_archive_is_rejected(self, plain: bytes) -> None:
        without = changed(plain, files={"models/model.json": None})
        with pytest.raises(ExportError, match=r"has no models/model\.json: it was not written by"):
            read_program(without, "it.pt2")

    def test_layer_options_may_be_named(self) -> None:
        def name(model: dict[str, Any]) -> None:
            for node in model["graph_module"]["graph"]["nodes"]:
                for inputs in node["inputs"][2 if "conv2d" in node["target"] else 9 :]:
                    inputs["kind"] = 2  # of torch's schema: by name

        module = Pictures().eval()
        x = torch.randn(3, 2, 6, 6)
        result = read_program(changed(exported(module, x), name), "it.pt2").module
        torch.testing.assert_close(result(x), module(x))


def pickled(touched: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save((Touch(touched),), buffer)
    return buffer.getvalue()


def touching(touched: Path) -> str:
    return f"__import__('pathlib').Path({str(touched)!r}).touch()"


def in_samples(data: bytes, touched: Path) -> bytes:
    return changed(data, files={"data/sample_inputs/model.pt": pickled(touched)})


def in_guards(data: bytes, touched: Path) -> bytes:
    return changed(data, lambda model: model.update(guards_code=[touching(touched)]))


def in_a_size(data: bytes, touched: Path) -> bytes:
    return changed(data, lambda model: _set_size(model, touching(touched)))


def _set_size(model: dict[str, Any], size: str) -> None:
    shape = model["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    shape[0]["as_expr"]["expr_str"] = size


class TestHostile:
    @pytest.mark.parametrize("hide", [in_samples, in_guards, in_a_size])
    def test_embedded_code_is_not_run(
        self, plain: bytes, tmp_path: Path, hide: Callable[[bytes, Path], bytes]
    ) -> None:
        touched = tmp_path / "touched"
        hostile = hide(plain, touched)
        with contextlib.suppress(ExportError):
            read_program(hostile, "it.pt2").module(torch.zeros(2, 2))
        assert not touched.exists()
        with contextlib.suppress(Exception):  # of what the code returns
            torch.export.load(io.BytesIO(hostile)).module()(torch.zeros(2, 2))
        assert touched.exists()  # torch itself runs it

    def test_unneeded_files_are_dropped(self, plain: bytes, tmp_path: Path) -> None:
        touched = tmp_path / "touched"
        more = {
            "data/weights/model.pt": pickled(touched),
            "data/constants/model.pt": pickled(touched),
            "data/aotinductor/model/it.so": b"not even a library",
        }
        result = read_program(changed(plain, files=more), "it.pt2").module
        assert result(torch.zeros(2, 2)).shape == (2, 2)
        assert not touched.exists()

    @pytest.mark.parametrize(
        "target",
        [
            "torch.os.system",
            "torch.load",
            "torch.ops.load_library",
            "torch.ops.aten.from_file.default",
            "torch.ops.aten.save.default",
            "torch.ops.higher_order.cond",
            "torch.ops.torchao.dequantize_affine.default",
            "_operator.methodcaller",
            "math.factorial",
            "#extension",
        ],
    )
    def test_only_aten_operators_are_called(self, plain: bytes, target: str) -> None:
        def change(model: dict[str, Any]) -> None:
            model["graph_module"]["graph"]["nodes"][-1]["target"] = target

        advice = "trace: torch.*--variants script,int8" if "torchao" in target else "decompose it"
        message = f"calls '{target}'; only operators of aten.*{advice}"
        with pytest.raises(ExportError, match=message):
            read_program(changed(plain, change), "it.pt2")

    @pytest.mark.parametrize(
        "size",
        [
            "__import__('os').getcwd()",
            "Symbol('s0').__class__",
            "Pow(9, Pow(9, 9))",
            "9" * 40,
            "lambda: 0",
        ],
    )
    def test_size_expressions_allow_only_arithmetic(self, plain: bytes, size: str) -> None:
        def change(model: dict[str, Any]) -> None:
            _set_size(model, size)

        with pytest.raises(ExportError, match=r"has the size .* which torch would evaluate"):
            read_program(changed(plain, change), "it.pt2")

    def test_size_names_are_checked(self, plain: bytes) -> None:
        def change(model: dict[str, Any]) -> None:
            model["range_constraints"]["exit()"] = {"min_val": 1, "max_val": 2}

        with pytest.raises(ExportError, match=r"has a size named 'exit\(\)'"):
            read_program(changed(plain, change), "it.pt2")

    def test_only_known_structure_types_are_allowed(self, plain: bytes) -> None:
        def change(model: dict[str, Any]) -> None:
            signature = model["graph_module"]["module_call_graph"][0]["signature"]
            spec = '{"type": "collections.defaultdict", "context": "[]", "children_spec": []}'
            signature["out_spec"] = f"[1, {spec}]"

        with pytest.raises(ExportError, match=r"takes or returns a collections\.defaultdict"):
            read_program(changed(plain, change), "it.pt2")

    @pytest.mark.parametrize(
        "payload", [{"use_pickle": True}, {"path_name": "opaque_obj_0"}, {"path_name": "../x"}]
    )
    def test_pickled_tensors_are_refused(self, plain: bytes, payload: dict[str, object]) -> None:
        name = "data/weights/model_weights_config.json"
        with zipfile.ZipFile(io.BytesIO(plain)) as archive:
            config = json.loads(archive.read(f"archive/{name}"))
        config["config"]["first.weight"] |= payload
        with pytest.raises(ExportError, match=r"has 'first\.weight' as a pickle, which runs code"):
            read_program(changed(plain, files={name: json.dumps(config).encode()}), "it.pt2")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("data/weights/model_weights_config.json", b"[]"),
            ("data/weights/model_weights_config.json", b"{}"),
            ("data/constants/model_constants_config.json", b'{"config": {"x": 1}}'),
            ("models/model.json", b"[]"),
            ("models/model.json", b'{"range_constraints": 5}'),
        ],
    )
    def test_json_with_another_structure_is_refused(
        self, plain: bytes, name: str, content: bytes
    ) -> None:
        with pytest.raises(ExportError, match=r"^it\.pt2 is malformed: "):
            read_program(changed(plain, files={name: content}), "it.pt2")

    def test_invalid_json_is_refused(self, plain: bytes) -> None:
        with pytest.raises(ExportError, match="is not JSON"):
            read_program(changed(plain, files={"models/model.json": b"{"}), "it.pt2")


class TestAdopt:
    def test_program_declares_its_inputs(
        self, pooled: tuple[nn.Module, bytes], tmp_path: Path
    ) -> None:
        file = written(tmp_path, pooled[1], "it.pt2")
        adoption = run(file, "--name", "it", "--pad", "n=mask", "--output", "score")
        definition = adoption.definition
        assert str(definition.inputs[0]).startswith("ids=int64[-1,1<=n<=16]")
        assert (definition.inputs[0].minimum, definition.inputs[0].maximum) == (0, 29)
        assert [(each.name, each.shape) for each in definition.outputs] == [("score", (-1, 2))]
        item = definition.golden_inputs()[0]
        ids, mask = (torch.from_numpy(item[name])[None] for name in ("ids", "mask"))
        expected = pooled[0](ids, mask)["score"]
        torch.testing.assert_close(definition.build()(ids, mask), expected)

    @pytest.mark.parametrize("ending", ["pt2", "mar"])
    def test_program_that_answers_differently_after_rewriting_is_rejected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        monkeypatch.setattr(programs, "plain_module", lambda program: fx.symbolic_trace(nn.GELU()))
        data = exported(nn.ReLU(), torch.zeros(3, 2))
        file = written(
            tmp_path, data if ending == "pt2" else mar({"sums.pt": data}), f"it.{ending}"
        )
        with pytest.raises(ExportError, match="gives other answers once its operators are rewr"):
            run(file, "--name", "it")

    def test_program_in_an_archive_declares_its_inputs(self, tmp_path: Path) -> None:
        data = mar({"sums.pt": exported(nn.ReLU(), torch.zeros(3, 2))})
        adoption = run(written(tmp_path, data, "it.mar"))
        assert [each.shape for each in adoption.definition.inputs] == [(-1, 2)]
        x = torch.tensor([[1.0, -1.0]])
        torch.testing.assert_close(adoption.definition.build()(x), torch.relu(x))

    def test_a_program_in_training_mode_is_rejected(self, tmp_path: Path) -> None:
        module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
        file = written(tmp_path, exported(module, torch.zeros(3, 2)), "it.pt2")
        with pytest.raises(ExportError, match="was exported in training mode: its dropout would"):
            run(file, "--name", "it")


def of(module: Callable[[], nn.Module]) -> Definition:
    return of_vectors(module, (2,))


class TestVariants:
    """Each is made of a program, of TorchScript, and of neither."""

    @pytest.mark.parametrize("way", ["program", "torchscript"])
    @pytest.mark.parametrize(
        ("maker", "precision"),
        [
            (TorchScript("script"), "float32"),
            (TorchScript("trace"), "float32"),
            (Half("bf16"), "bf16"),
            (Int8(), "int8"),
        ],
    )
    def test_variants_are_made_from_program_and_torchscript(
        self, tmp_path: Path, plain: bytes, way: str, maker: Any, precision: Precision
    ) -> None:
        model = of(Net)
        if way == "program":
            of_script = Subject("given", model, read_program(plain, "it.pt2").module)
        else:
            of_script = Subject("given", model, torch.jit.script(subject(model).eager))
        draft = maker.make(of_script, tmp_path)
        assert proved(loaded(draft, tmp_path, model), of_script, precision).max_absolute < 0.1

    def test_torchscript_is_converted_for_the_compiler(self) -> None:
        of_script = Subject("given", of(Net), torch.jit.script(subject(of(Net)).eager))
        result = in_python(of_script).eager
        assert not isinstance(result, torch.jit.ScriptModule)
        x = torch.from_numpy(np.ones((5, 2), np.float32))
        torch.testing.assert_close(result(x), of_script.eager(x))
        free = torch.export.export(result, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        assert len(free.range_constraints) == 1

    def test_unconvertible_torchscript_is_not_applicable(self) -> None:
        of_script = Subject("given", of(Looping), torch.jit.script(Looping().eval()))
        with pytest.raises(NotApplicable, match="cannot be converted to a program"):
            in_python(of_script)


class Looping(nn.Module):
    """How often it doubles depends on the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        turns = 0
        while bool(x.abs().max() < 100.0) and turns < 50:
            x = x * 2
            turns += 1
        return x
