"""Settings that hosting platforms give in their own way: Vertex AI and SageMaker.

What a platform says takes precedence over variables, because images set those; flags are above
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SERVE = "serve"  # the argument with which SageMaker starts a container
SAGEMAKER_MODELS = Path("/opt/ml/model")
SAGEMAKER_PORT = "SAGEMAKER_BIND_TO_PORT"
VERTEX = {
    "AIP_HTTP_PORT": "port",
    "AIP_HEALTH_ROUTE": "health_route",
    "AIP_PREDICT_ROUTE": "predict_route",
    "AIP_STORAGE_URI": "model_dir",  # gs://...
}


class Hosted(NamedTuple):
    """What a platform says.

    Attributes:
        settings: values of settings, by the setting's name.
        sources: what said so, by the setting's name, for errors.
        arguments: the command line without the platform's own argument.
    """

    settings: dict[str, str]
    sources: dict[str, str]
    arguments: Sequence[str]


def hosted(
    environment: Mapping[str, str],
    arguments: Sequence[str],
    sagemaker_models: Path = SAGEMAKER_MODELS,
) -> Hosted:
    """What the platform of this process says, if there is one.

    Vertex AI: variables that begin with AIP_, of which it always sets the port. SageMaker: the
    variable for its port, or the argument `serve` in a container that has its folder of models;
    elsewhere `serve` is only the name of what this program does.

    Args:
        environment: the process's variables.
        arguments: the command line, without the program.
        sagemaker_models: where SageMaker unpacks a model's archive.
    """
    settings: dict[str, str] = {}
    sources: dict[str, str] = {}

    def say(name: str, value: str, source: str) -> None:
        settings[name], sources[name] = value, source

    is_served = list(arguments[:1]) == [SERVE]
    if is_served:
        arguments = arguments[1:]
    if environment.get("AIP_HTTP_PORT"):
        say("host", "0.0.0.0", "AIP_HTTP_PORT")  # nosec B104 # the platform's contract
        for variable, name in VERTEX.items():
            if environment.get(variable):
                say(name, environment[variable], variable)
    elif environment.get(SAGEMAKER_PORT) or (is_served and sagemaker_models.is_dir()):
        say("host", "0.0.0.0", SERVE)  # nosec B104 # the platform's contract
        say("port", environment.get(SAGEMAKER_PORT) or "8080", SAGEMAKER_PORT)
        # Else the models are in the image.
        if sagemaker_models.is_dir() and any(sagemaker_models.iterdir()):
            say("model_dir", str(sagemaker_models), str(sagemaker_models))
    return Hosted(settings, sources, arguments)
