"""Locust's users; `loadtests.traffic` makes what they send, see docs/load-testing.md.

    locust --headless --locustfile loadtests/locustfile.py --host http://127.0.0.1:8000 Batches

Without names of classes, all of them load that the model can take.
"""

from __future__ import annotations

from locust import events

from loadtests.swarm.listeners import listen
from loadtests.swarm.users import ModelUser

listen(events)


class UniqueSingles(ModelUser):
    """Every request has an input of its own: nothing but the model can answer it."""

    workload_name = "unique"


class RepeatedSingles(ModelUser):
    """Popular inputs come again and again (Zipf): cache and single-flight at work."""

    workload_name = "repeated"


class Batches(ModelUser):
    """Batches of new items, half of which are duplicates."""

    workload_name = "batch"


class BinarySingles(ModelUser):
    """New items as raw bytes, answered as raw bytes: the price of JSON left out."""

    workload_name = "binary"


class NpySingles(ModelUser):
    """New items as .npy files, answered as .npy files."""

    workload_name = "npy"


class Images(ModelUser):
    """PNG files, popular ones and new ones: decoding and preprocessing at work."""

    workload_name = "image"


class Texts(ModelUser):
    """New texts as text/plain."""

    workload_name = "text"


class MixedWithBadInput(ModelUser):
    """All that the model can take, and two in a hundred requests that must be refused."""

    workload_name = "mixed"
