"""How processes of handlers are started."""

from __future__ import annotations

from torchlane.handlers.launch import environment


def test_environment_is_a_short_list() -> None:
    own = {"PATH": "/bin", "LC_TIME": "C", "TORCHLANE_API_KEYS": "x", "PYTHONPATH": "/", "OMP": "1"}
    assert environment(own) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
