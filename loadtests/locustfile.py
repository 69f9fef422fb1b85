"""Locust's users, whose requests `loadtests.traffic` creates; see docs/load-testing.md.

    torchlane load locust --headless --host http://127.0.0.1:8000 Batches

Without class names, all classes that suit the model run.
"""

from __future__ import annotations

from locust import events

from loadtests.swarm.listeners import listen
from loadtests.swarm.users import ModelUser

listen(events)


class UniqueSingles(ModelUser):
    """Every request has a new input, which only the model can answer."""

    workload_name = "unique"


class RepeatedSingles(ModelUser):
    """Popular inputs repeat (Zipf), for cache and single-flight."""

    workload_name = "repeated"


class Batches(ModelUser):
    """Batches of new items, half of them duplicates."""

    workload_name = "batch"


class BinarySingles(ModelUser):
    """New items as raw bytes, answered as raw bytes, without the cost of JSON."""

    workload_name = "binary"


class NpySingles(ModelUser):
    """New items as .npy files, answered as .npy files."""

    workload_name = "npy"


class Images(ModelUser):
    """PNG files, popular and new ones, for decoding and preprocessing."""

    workload_name = "image"


class Texts(ModelUser):
    """New texts as text/plain."""

    workload_name = "text"


class MixedWithBadInput(ModelUser):
    """Everything that the model accepts, and two in a hundred requests that must be rejected."""

    workload_name = "mixed"
