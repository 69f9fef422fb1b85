"""Under which conditions a number was measured; without them it cannot be repeated or compared."""

from __future__ import annotations

import datetime as dt
import os
import platform
from dataclasses import dataclass

from loadtests.capacity.trial import Gates
from loadtests.openloop.address import Address
from loadtests.traffic.target import Target
from models.processor import cpu_name
from models.resources import usable_cores


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was measured, how, when and on what.

    Attributes:
        command: that can be typed again.
        date: of the start, UTC.
        machine: processor, cores and system of the generator.
        load_average: of the last minute before the start.
        address: IP:PORT that the URL stood for.
        settings: of the search or of the run, by name.
    """

    command: str
    date: str
    machine: str
    load_average: float
    url: str
    address: str
    model: str
    version: int
    precision: str
    workload: str
    arrivals: str
    slo_ms: float
    fail_ratio: float
    settings: dict[str, float]


def conditions_of(
    command: str,
    target: Target,
    address: Address,
    sent: tuple[str, str],
    gates: Gates,
    settings: dict[str, float],
) -> Conditions:
    """The conditions of a measurement that starts now on this machine.

    Args:
        command: that was typed.
        target: what is loaded.
        address: of its server, looked up.
        sent: workload and arrivals.
        gates: of the measurement.
        settings: of the search or of the run, by name.
    """
    workload, arrivals = sent
    return Conditions(
        command=command,
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=f"{cpu_name()}, {usable_cores()} cores, {platform.system()} {platform.machine()}",
        load_average=round(os.getloadavg()[0], 2),
        url=target.url,
        address=address.peer,
        model=target.model,
        version=target.version,
        precision=target.precision,
        workload=workload,
        arrivals=arrivals,
        slo_ms=gates.slo_ms,
        fail_ratio=gates.fail_ratio,
        settings=settings,
    )
