"""tritonclient loads and unloads. Arguments: host and port, a key with `admin`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from tritonclient import http

from tests.clients.triton_http import refused, tensor


def main() -> None:
    target, key = sys.argv[1:]
    client: Any = http.InferenceServerClient(target)
    mine = {"headers": {"authorization": f"Bearer {key}"}}
    x = [tensor(np.array([[1, 2]], np.float32))]

    for call in (client.load_model, client.unload_model):
        assert refused(call, "double")[0] == "401"
        assert refused(call, "none", **mine)[0] == "404"
    assert refused(client.infer, "double", x)[0] == "401"
    assert client.infer("double", x, **mine).get_response()["model_version"] == "2"

    client.unload_model("double", unload_dependents=True, **mine)
    assert client.is_model_ready("double", **mine) is False
    assert refused(client.infer, "double", x, **mine)[0] in {"404", "503"}
    states = {each["state"] for each in client.get_model_repository_index(**mine)}
    assert "UNAVAILABLE" in states, states
    client.load_model("double", **mine)
    assert client.is_model_ready("double", **mine) is True
    assert client.infer("double", x, **mine).get_response()["model_version"] == "2"

    parameters: dict[str, Any] = {"config": "{}"}
    assert refused(client.load_model, "double", **parameters, **mine)[0] == "400"


if __name__ == "__main__":
    main()
