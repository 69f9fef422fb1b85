"""Users and tasks; what they send is made in `loadtests.payloads`.

    locust --headless --locustfile loadtests/locustfile.py --host http://127.0.0.1:8000

TORCHLANE_LOAD_MODEL names the model to load; unset, it is the server's default one.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from locust import FastHttpUser, constant, task

from loadtests.payloads import Payloads, batch_body, body

BATCH = 16
JSON = {"Content-Type": "application/json"}
SEEDS = itertools.count(int.from_bytes(os.urandom(4)))


class ModelUser(FastHttpUser):
    """Learns from the server what the model takes; as fast as the server answers."""

    abstract = True
    wait_time = constant(0)

    def on_start(self) -> None:
        """Draw from a seed of one's own."""
        wanted = os.environ.get("TORCHLANE_LOAD_MODEL")
        info = self._model_info(wanted)
        self.model: str = info["name"]
        self.payloads = Payloads(info["manifest"], seed=next(SEEDS))

    def _model_info(self, wanted: str | None) -> dict[str, Any]:
        models = self.client.get("/models").json()["models"]
        for info in models:
            if info["manifest"] and (info["name"] == wanted or (not wanted and info["default"])):
                return dict(info)
        raise RuntimeError(f"the server has not loaded {wanted or 'its default model'}")

    def send(self, route: str, content: bytes, predictions: int) -> None:
        """Post a body; anything but as many predictions as were asked for is a failure."""
        with self.client.post(
            f"/models/{self.model}/{route}",
            data=content,  # type: ignore[arg-type]  # bytes go as they are; the annotation lacks them
            headers=JSON,
            name=f"{route} ({type(self).__name__})",
            catch_response=True,
        ) as response:
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text}")
                return
            answer = response.json()
            got = answer.get("predictions") or [answer.get("prediction")]
            if len(got) != predictions or any(p is None or "error" in p for p in got):
                response.failure(f"{len(got)} predictions for {predictions} items: {got}")


class UniqueSingles(ModelUser):
    """Every request has an input of its own: nothing but the model can answer it."""

    @task
    def predict(self) -> None:
        """One new item."""
        self.send("predict", body(self.payloads.unique()), 1)


class RepeatedSingles(ModelUser):
    """Popular inputs come again and again: cache and single-flight at work."""

    @task
    def predict(self) -> None:
        """One popular item."""
        self.send("predict", body(self.payloads.repeated()), 1)


class BatchesWithDuplicates(ModelUser):
    """Batches in which half of the items are duplicates."""

    @task
    def batch_predict(self) -> None:
        """A batch of new items, many of them twice."""
        self.send("batch-predict", batch_body(self.payloads.with_duplicates(BATCH)), BATCH)
