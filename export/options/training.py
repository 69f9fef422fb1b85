"""The options of `torchlane train`."""

from __future__ import annotations

import argparse

from models.system.command_lines import amount, positive
from models.system.local_paths import local_path

DESCRIPTION = "Train a model as its definition declares it; writes RUN/best.ckpt and its curves."
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "pipeline")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
LOGGERS = ("csv", "tensorboard")


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane train`."""
    parser.add_argument("model", help="the model to train, a name in the catalog")
    parser.add_argument(
        "--out", type=local_path, required=True, metavar="RUN", help="the run's folder"
    )
    parser.add_argument("--resume", action="store_true", help="continue from RUN/last.ckpt")
    parser.add_argument("--epochs", type=positive, metavar="N", help="default: as declared")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", help="samples of a step, over all processes"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="default: as declared")
    parser.add_argument("--accelerator", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument(
        "--devices", type=positive, metavar="N", help="processes per machine (default: 1)"
    )
    parser.add_argument("--num-nodes", type=positive, metavar="N", help="machines; set by torchrun")
    parser.add_argument("--strategy", choices=STRATEGIES, default="auto")
    parser.add_argument(
        "--microbatches", type=positive, metavar="N", help="of a pipeline (default: 2 per stage)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--deterministic", action="store_true", help="only deterministic kernels")
    parser.add_argument(
        "--detect-anomaly", action="store_true", help="stop at the first NaN and name its operation"
    )
    parser.add_argument("--profile", action="store_true", help="print operators, write a trace")
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes that load data (default: 0)"
    )
    parser.add_argument(
        "--checkpoint-every", type=positive, metavar="N", help="steps, in addition to epoch ends"
    )
    parser.add_argument(
        "--accumulate-grad-batches",
        type=positive,
        metavar="N",
        help="update the weights once for N batches (default: 1)",
    )
    parser.add_argument("--gradient-clip-val", type=amount, metavar="X", help="clip gradients at X")
    parser.add_argument(
        "--gradient-clip-algorithm",
        choices=("norm", "value"),
        help="what X limits: the norm of all gradients (default), or each number",
    )
    parser.add_argument(
        "--early-stopping",
        metavar="METRIC",
        help="stop when loss, evaluation_loss or a declared metric no longer improves",
    )
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether lower (min) or higher (max) is better (default: min for a loss, else max)",
    )
    parser.add_argument(
        "--patience", type=positive, metavar="N", help="epochs without improvement (default: 3)"
    )
    parser.add_argument(
        "--min-delta", type=amount, metavar="X", help="the least improvement (default: any)"
    )
    parser.add_argument(
        "--logger",
        choices=LOGGERS,
        action="append",
        help="write losses and metrics; may be repeated",
    )
