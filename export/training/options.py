"""Checks of the options of `torchlane train`, without Lightning."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from export.checkpoints import LAST
from export.errors import UsageError
from models.definitions.definition import Definition
from models.definitions.training import Training
from models.system.command_lines import flag_of
from models.system.extras import check_extra

LOSSES = ("loss", "evaluation_loss")
# Options of Lightning, by its names, that a resumed run keeps, as those of the declaration.
STOPPING = ("early_stopping", "mode", "patience", "min_delta")
STEP_OPTIONS = (
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    *STOPPING,
)


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run.

    Attributes:
        kind: of the devices, one per process: cpu, cuda or mps.
        here: processes on this machine.
        rank: of this process, among all.
        elastic: whether `torchrun` starts them, and restarts them when one is lost.
    """

    kind: Literal["cpu", "cuda", "mps"]
    here: int
    machines: int
    rank: int
    elastic: bool

    @property
    def world(self) -> int:
        """All processes."""
        return self.here * self.machines


def processes(args: argparse.Namespace) -> Processes:
    """Determine the processes of the run.

    Raises:
        UsageError: if there are too few devices.
    """
    kind = args.accelerator
    usable = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if kind == "auto":
        kind = next(each for each, there in usable.items() if there)
    if not usable[kind]:
        raise UsageError(f"--accelerator {kind}: this machine has none")
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    here, machines = args.devices or 1, args.num_nodes or 1
    if by_torchrun:
        count = int(os.environ["LOCAL_WORLD_SIZE"])
        if args.devices not in (None, count):
            raise UsageError(f"torchrun started {count} processes: omit --devices {here}")
        here, machines = count, int(os.environ["WORLD_SIZE"]) // count
        if args.num_nodes not in (None, machines):
            raise UsageError(
                f"torchrun started {machines} machines: omit --num-nodes {args.num_nodes}"
            )
        _check_restarts()
    elif machines > 1 and "NODE_RANK" not in os.environ:
        raise UsageError(
            f"--num-nodes {machines}: start it with torchrun on each machine (docs/training.md), "
            "or set NODE_RANK, MASTER_ADDR and MASTER_PORT"
        )
    there = {"cuda": torch.cuda.device_count(), "mps": 1}.get(kind, here)
    if here > there:
        raise UsageError(f"--devices {here}: this machine has {there} {kind} devices")
    local, node = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "NODE_RANK"))
    rank = int(os.environ.get("RANK", node * here + local))
    return Processes(kind, here, machines, rank, by_torchrun)


def _check_restarts() -> None:
    """Check that restarted processes cannot find what their predecessors wrote.

    torch 2.13 gives all of them one store, in which a process may read the address of an ended
    process: `DynamicRendezvousHandler.next_rendezvous` creates it once.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise UsageError(
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun --max-restarts: without it "
            "restarted processes may wait for ended ones"
        )


def stages_of(definition: Definition) -> Any:
    """Return the function that cuts the model into stages; None: there is none."""
    how = definition.training
    return (how.stages if how else None) or definition.stages


def check(args: argparse.Namespace, definition: Definition, processes: Processes) -> None:
    """Run the checks that need no model.

    Raises:
        UsageError: with the correct form in one sentence.
    """
    if definition.training is None:
        raise UsageError(
            f"{args.model!r} declares no `training`: see docs/training.md for how to declare it"
        )
    strategy, alone = args.strategy, processes.world == 1
    if alone and strategy != "auto" and not processes.elastic:  # all others may have left
        raise UsageError(f"--strategy {strategy} needs several processes: use --devices 2 or more")
    if args.compile and args.detect_anomaly:
        raise UsageError("--detect-anomaly sees no operations in compiled code: omit --compile")
    if args.workers < 0:
        raise UsageError(f"--workers must be 0 or more, got {args.workers}")
    if args.seed is not None and not 0 <= args.seed < 2**31:
        raise UsageError(f"--seed must be 0 to {2**31 - 1}, got {args.seed}")
    if strategy == "fsdp" and args.precision == "16-mixed":
        raise UsageError("--precision 16-mixed cannot be combined with fsdp: use bf16-mixed")
    _check_steps(args, definition.training)
    if strategy == "pipeline":
        check_pipeline(args, definition)
    elif args.microbatches is not None:
        raise UsageError("--microbatches is for --strategy pipeline")
    last = args.out / LAST
    if processes.rank == 0 and not processes.elastic:  # others may see what the first wrote
        if args.resume and not last.exists():
            raise UsageError(f"--resume: there is no {last}; omit --resume to begin")
        if not args.resume and last.exists():
            raise UsageError(f"{args.out} has a run: add --resume, or choose another folder")


def _check_steps(args: argparse.Namespace, how: Training) -> None:
    """Check the options that are Lightning's own."""
    if args.gradient_clip_algorithm and args.gradient_clip_val is None:
        raise UsageError("--gradient-clip-algorithm needs --gradient-clip-val")
    stopping = [each for each in STOPPING if getattr(args, each) is not None]
    if stopping and args.early_stopping is None:
        raise UsageError(f"{flag_of(stopping[0])} needs --early-stopping METRIC")
    there = (*LOSSES, *how.metrics) if how.evaluation else LOSSES[:1]
    if stopping and args.early_stopping not in there:
        raise UsageError(
            f"--early-stopping {args.early_stopping}: this model has {', '.join(there)}"
            + ("" if how.evaluation else "; its training declares no `evaluation`")
        )
    if "tensorboard" in (args.logger or ()):
        check_extra("--logger tensorboard", "tensorboard", ("tensorboard",))


def check_pipeline(
    args: argparse.Namespace, definition: Definition, *, resumed: bool = False
) -> None:
    """Check the options, for a resumed run with those that it began with.

    Raises:
        UsageError: if one cannot be combined with a pipeline, or the model has no stages.
    """
    if stages_of(definition) is None:
        raise UsageError(f"--strategy pipeline: {args.model!r} declares no stages; use ddp or fsdp")
    wrong = "--compile" if args.compile else ""
    wrong = wrong or ("--precision 16-mixed" if args.precision == "16-mixed" else "")
    for each in ("accumulate_grad_batches", "gradient_clip_val"):
        wrong = wrong or (flag_of(each) if getattr(args, each) is not None else "")
    if wrong:
        subject = f"the run began with {wrong}, which" if resumed else wrong
        raise UsageError(f"{subject} cannot be combined with --strategy pipeline")


def check_stages(module: nn.Module, stages: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """Return the stages if each weight of the model is in exactly one of them.

    Raises:
        UsageError: if one is missing, or shared and would get two different values.
    """
    counts = Counter(id(each) for stage in stages for each in stage.parameters())
    for name, each in module.named_parameters():
        if counts[id(each)] != 1:
            raise UsageError(
                f"--strategy pipeline: {name} is in {counts[id(each)]} stages, but must be in one"
            )
    return stages


def check_split(args: argparse.Namespace, batch: int, stages: int, processes: Processes) -> int:
    """Return the number of microbatches of a pipeline; 0: it is not a pipeline.

    Raises:
        UsageError: if the batch or the processes cannot be divided that way.
    """
    if args.strategy != "pipeline":
        if batch < processes.world:
            raise UsageError(f"a batch of {batch} is too small for {processes.world} processes")
        return 0
    if stages < 2 or processes.world % stages:
        raise UsageError(
            f"--strategy pipeline: {processes.world} processes cannot be pipelines of "
            f"{stages} stages"
        )
    microbatches: int = args.microbatches or 2 * stages
    replicas = processes.world // stages
    if microbatches < stages or batch % (replicas * microbatches):
        raise UsageError(
            f"a batch of {batch} cannot be cut into {replicas} x {microbatches} microbatches, "
            f"of which a pipeline of {stages} stages needs at least {stages}: "
            "see --batch-size and --microbatches"
        )
    return microbatches
