"""The options of `torchlane load networks`."""

from __future__ import annotations

import argparse

from loadtests.bench.options import ROUNDS, add_common
from loadtests.networks.sizes import BERT, MOBILENET, RESNET
from models.system.command_lines import positive

NETWORKS = (MOBILENET, RESNET, BERT)


def add_networks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help=f"default: {ROUNDS}")
    add_common(parser)
