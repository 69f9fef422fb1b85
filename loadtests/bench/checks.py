"""What must hold for a number to count: right answers, all of them 200, every one computed."""

from __future__ import annotations

import orjson
from prometheus_client.parser import text_string_to_metric_families

from loadtests.bench.generator import Run
from loadtests.bench.requests import Requests
from loadtests.bench.servers import Server, fetch

INPUTS = 50
TOLERANCE = 1e-4
COMPUTED = "torchlane_items_computed_total"


class CheckError(Exception):
    """A number of this benchmark would not mean what it says; the message says why."""


def check_same_answers(torchlane: Server, reference: Server, requests: Requests) -> None:
    """Both give the same label and scores to the same inputs, and not one label to them all.

    Raises:
        CheckError: naming the first input where they differ.
    """
    labels = set()
    for index in range(INPUTS):
        body = requests.body()
        expected = _answer(reference, body)
        got = _answer(torchlane, body).get("prediction")
        problem = difference(expected, got)
        if problem is not None:
            raise CheckError(
                f"input {index}: {torchlane.name} and {reference.name} disagree: {problem}; "
                "both must serve the same version of digits: see the artifacts folder"
            )
        labels.add(str(expected["label"]))
    if len(labels) < 2:
        raise CheckError(f"{INPUTS} different digits were all {labels}; make the artifact anew")


def difference(expected: dict[str, object], got: object) -> str | None:
    """How a prediction differs from the expected one, or None where it is the same."""
    if not isinstance(got, dict) or set(got) != {"label", "score", "scores"}:
        return f"{got!r} is no prediction with label, score and scores"
    if got["label"] != expected["label"]:
        return f"label {got['label']!r} instead of {expected['label']!r}"
    wanted, scores = _numbers(expected), _numbers(got)
    if len(scores) != len(wanted):
        return f"{len(scores) - 1} scores instead of {len(wanted) - 1}"
    for want, score in zip(wanted, scores, strict=True):
        if not abs(score - want) <= TOLERANCE:  # NaN is not either
            return f"score {score:.6g} instead of {want:.6g}"
    return None


def check_all_answered(server: str, run: Run) -> None:
    """Every answer was 200.

    Raises:
        CheckError: with the first that was not.
    """
    if run.first_not_200 is not None:
        first = run.first_not_200
        raise CheckError(
            f"{server}: {run.not_200} of {run.answered} answers were not 200; the first was "
            f"{first.status}: {first.body[:500].decode(errors='replace')}"
        )
    if not run.latencies_s:
        raise CheckError(f"{server} gave no answer in {run.seconds:g} s; measure longer")


def check_all_computed(before: float, after: float, answered: int) -> None:
    """As many items went through the model as were answered: no cache, no single-flight.

    Raises:
        CheckError: if not.
    """
    if after - before != answered:
        raise CheckError(
            f"{COMPUTED} grew by {after - before:g} in a run of {answered} requests; "
            "does something else use this server, or do inputs repeat?"
        )


def items_computed(server: Server, model: str) -> float:
    """How many items of a model a Torchlane server has computed since it started.

    Raises:
        CheckError: if /metrics does not tell.
    """
    status, text = fetch(server.port, "GET", "/metrics")
    samples = [
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == COMPUTED and sample.labels.get("model") == model
    ]
    if status != 200 or not samples:
        raise CheckError(f"GET /metrics of {server.name} ({status}) tells no {COMPUTED} of {model}")
    return sum(samples)


def _answer(server: Server, body: bytes) -> dict[str, object]:
    status, content = fetch(server.port, "POST", "/predict", body)
    if status != 200:
        text = content[:500].decode(errors="replace")
        raise CheckError(f"{server.name} answered {status} to a good request: {text}")
    answer = orjson.loads(content)
    if not isinstance(answer, dict):
        raise CheckError(f"{server.name} answered no object: {content[:200]!r}")
    return answer


def _numbers(prediction: dict[str, object]) -> list[float]:
    scores = prediction["scores"]
    if not isinstance(scores, list):
        return []
    return [float(number) for number in (prediction["score"], *scores)]
