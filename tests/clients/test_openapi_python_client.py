"""openapi-python-client makes a typed client from the OpenAPI document, without a warning.

The generator and its client live in an environment of their own, which takes about 10 s to make.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifacts import write_artifact, write_small
from tests.clients.environments import environment, run
from tests.conftest import Once
from tests.e2e.server import running
from tests.kinds import write_pictures

# Runs next to the generated package `client`; argument: the server's address.
USE = """
import sys
from io import BytesIO

from client import Client
from client.api.models import get_model
from client.api.predictions import batch_predict, predict, predict_by_model, predict_by_version
from client.models import (
    BatchPredictAnswer, DefaultBatchPredictRequest, DefaultPredictRequest, ErrorBody,
    LabelledPrediction, ModelInfo, PredictAnswer, PredictRequest, TensorPrediction,
)
from client.types import File

client = Client(sys.argv[1], raise_on_unexpected_status=True)
picture = [[[0.5, 0.5], [0.5, 0.5]]]
one = predict.sync(client=client, body=DefaultPredictRequest(input_=picture))
assert type(one) is PredictAnswer and (one.model, one.version) == ("pictures", 1), one
assert type(one.prediction) is LabelledPrediction, one
assert one.prediction.label in ("dark", "light") and len(one.prediction.scores) == 2, one
two = DefaultBatchPredictRequest(inputs=[picture, picture])
many = batch_predict.sync(client=client, body=two)
assert type(many) is BatchPredictAnswer and many.predictions == [one.prediction] * 2, many
raw = predict.sync(client=client, body=File(BytesIO(bytes(4 * 4))))
assert type(raw) is PredictAnswer, raw
named = predict_by_model.sync("double", client=client, body=PredictRequest(input_=[1, 2]))
assert type(named) is PredictAnswer and type(named.prediction) is TensorPrediction, named
assert named.prediction.outputs["y"] == [2.0, 4.0], named
several = PredictRequest.from_dict({"input": {"picture": [[[0.0] * 4] * 4], "shift": [1]}})
small = predict_by_version.sync("small", 1, client=client, body=several)
assert type(small) is PredictAnswer and len(small.prediction.outputs["y"]) == 3, small
refused = predict.sync(client=client, body=DefaultPredictRequest(input_=[[[1.0]]]))
assert type(refused) is ErrorBody and refused.code == "invalid_input", refused
missing = predict_by_model.sync("none", client=client, body=PredictRequest(input_=[1, 2]))
assert type(missing) is ErrorBody and missing.code == "model_not_found", missing
info = get_model.sync("double", client=client)
assert type(info) is ModelInfo and info.version == 1, info
print("used")
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model of each kind: labelled pictures, one input, several inputs with a free dimension."""
    folder = tmp_path / "models"
    write_pictures(folder)
    write_artifact(folder, "double")
    write_small(folder, ["script"], free=True)
    return folder


@pytest.fixture(scope="module")
def generator(once: Once) -> Path:
    """An environment with the generator."""
    return environment(once, "openapi_python_client")


def test_the_generated_client_is_typed_and_works(
    generator: Path, models: Path, tmp_path: Path
) -> None:
    script = tmp_path / "use.py"
    script.write_text(USE)
    with running(models, tmp_path / "log", default_model="pictures") as server:
        source = f"--url={server.url}/openapi.json", f"--output-path={tmp_path / 'client'}"
        told = run(generator, "-m", "openapi_python_client", "generate", *source, "--meta=none")
        assert "warning" not in told.lower(), told
        assert run(generator, script, server.url) == "used\n"
