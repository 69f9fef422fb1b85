"""The one-line reason in errors of torch and its compilers."""

from __future__ import annotations

import pytest
import torch

from export.errors import LONGEST, reason

CONSTRAINTS = """\
Constraints violated (batch)! For more information, run with TORCH_LOGS="+dynamic".
  - Not all values of batch = L['x'].size()[0] satisfy the generated guard.
Suggested fixes:
  batch = 2*_batch

The error above occurred when calling torch.export.export."""
GUARD = """\
Could not guard on data-dependent Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like: none)

consider using data-dependent friendly APIs such as guard_or_false.
For more information, run with TORCH_LOGS="dynamic"

The following call raised this error:
  File "/home/somebody/model.py", line 19, in forward
    x = x if x.any() else y


The error above occurred when calling torch.export.export."""
COMPILER = """\
CppCompileError: C++ compile error

Command:
g++ /tmp/abc/header.hpp -I/home/somebody/include -o /tmp/abc/header.i

Output:
In file included from /tmp/abc/header.hpp:1:
/tmp/abc/header.hpp:3:10: fatal error: /usr/include/nope.h: No such file or directory
compilation terminated."""
SCRIPT = """
'Tensor' object has no attribute or method 'numpy'.:
  File "/home/somebody/model.py", line 26
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy()*2)
                                ~~~~~~~ <--- HERE
'Model.half' is being compiled since it was called from 'Model.forward'
  File "/home/somebody/model.py", line 20
        return self.half(x)
               ~~~~~~~~~ <--- HERE
"""
INTERPRETER = """\
The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/home/somebody/model.py", line 5, in forward
        return x.reshape(4, 4)
               ~~~~~~~~~ <--- HERE
{}: shape '[4, 4]' is invalid for input of size 6
"""
FROM_C = """\
mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)
Exception raised from meta at native/LinearAlgebra.cpp:196 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("one line"), "one line"),
        (RuntimeError(), "RuntimeError"),
        (AssertionError(), "AssertionError"),
        (KeyError("table"), "KeyError: 'table'"),
        (AssertionError("x is 3"), "AssertionError: x is 3"),
        (
            RuntimeError(CONSTRAINTS),
            (
                "Constraints violated (batch): Not all values of batch = L['x'].size()[0] satisfy "
                "the generated guard."
            ),
        ),
        (
            RuntimeError(GUARD),
            "Could not guard on data-dependent Eq(u0, 1), in: x = x if x.any() else y",
        ),
        (RuntimeError(COMPILER), "C++ compile error: nope.h: No such file or directory"),
        (RuntimeError("C++ compile error\n\nOutput:\n\n"), "C++ compile error"),
        (
            RuntimeError(SCRIPT),
            (
                "'Tensor' object has no attribute or method 'numpy', "
                "in: return torch.from_numpy(x.numpy()*2)"
            ),
        ),
        (
            torch.jit.Error(INTERPRETER.format("RuntimeError")),
            "shape '[4, 4]' is invalid for input of size 6",
        ),
        (
            torch.jit.Error(INTERPRETER.format("builtins.ValueError")),
            "ValueError: shape '[4, 4]' is invalid for input of size 6",
        ),
        (
            RuntimeError(INTERPRETER.format("what it was")),
            "what it was: shape '[4, 4]' is invalid for input of size 6",
        ),
        (RuntimeError(FROM_C), "mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"),
        (RuntimeError("Lowering:\n  target: aten.view"), "Lowering: target: aten.view"),
        (OSError("cannot read '/home/somebody/a-b/c.d.pt'"), "cannot read 'c.d.pt'"),
        (ValueError("n/a at 3 m/s, see https://pytorch.org/docs/stable/jit.html"), None),
    ],
)
def test_reason_is_the_relevant_line(error: Exception, message: str | None) -> None:
    assert reason(error) == (message or str(error))


def test_reason_has_a_maximum_length() -> None:
    message = reason(ValueError("word " * 200))
    assert len(message) <= LONGEST
    assert message.endswith("word ...")
