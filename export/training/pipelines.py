"""A model in stages learns as a pipeline, and several such pipelines as one: DDP over pipelines.

Ranks are ordered by pipeline, then by stage. A checkpoint has the whole model and the state of its
optimizer, as one process would write them: whichever strategy reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from export.checkpoints import PREFIX
from export.training.learner import Learner
from models.definitions.training import Batch, Share

Cut = Callable[[nn.Module], Sequence[nn.Module]]


class Part(PipelineStage):
    """Finds out the shapes without a trace: torch runs the stage, on memory as it finds it.

    Batch norms would take up what happens to be there, also NaN, and dropout draw numbers.
    """

    def _compute_outputs(self, *args: torch.Tensor, module: nn.Module, **kwargs: Any) -> Any:
        if not self.is_first:
            with torch.no_grad():
                for each in args:
                    each.fill_(1)
        was = module.training
        module.eval()
        try:
            return super()._compute_outputs(*args, module=module, **kwargs)
        finally:
            module.train(was)


class PipelineLearner(Learner):
    """Each process has one stage; the schedule runs forward and backward of all microbatches.

    Args:
        cut: makes the stages.
        microbatches: of the batch of a pipeline.
        options: see `Learner`.
    """

    def __init__(self, cut: Cut, microbatches: int, *options: Any) -> None:
        super().__init__(*options)
        self.automatic_optimization = False
        self.cut = cut
        self.microbatches = microbatches
        self.mesh: DeviceMesh | None = None
        self.mine: dict[str, torch.Tensor] = {}  # name in the model -> what this stage has of it

    @property
    def share(self) -> Share:
        """All stages of a pipeline see the same samples."""
        if self.mesh is None:
            raise RuntimeError("a bug: the share is asked for before there are processes")
        data = self.mesh["data"]
        return Share(data.get_local_rank(), data.size())

    def become_stage(self, mesh: DeviceMesh) -> None:
        """Keep one stage of the model, and free the others."""
        self.mesh = mesh
        index, stages = mesh["stage"].get_local_rank(), mesh["stage"].size()
        own = self.cut(self.module)[index]
        state = self.module.state_dict(keep_vars=True)
        kept = {id(each) for each in (*own.parameters(), *own.buffers())}
        self.mine = {name: each for name, each in state.items() if id(each) in kept}
        for name, each in state.items():
            if name not in self.mine:
                each.data = each.data.new_empty(0)
        wrapped: nn.Module = own.train()
        if mesh["data"].size() > 1 and any(each.requires_grad for each in own.parameters()):
            wrapped = DistributedDataParallel(own, process_group=mesh.get_group("data"))
        self.stage = Part(wrapped, index, stages, self.device, group=mesh.get_group("stage"))
        self.schedule = Schedule1F1B(self.stage, self.microbatches, loss_fn=self.how.loss)

    def parameters_here(self) -> list[nn.Parameter]:
        """Those of the stage."""
        return [each for each in self.mine.values() if isinstance(each, nn.Parameter)]

    def training_step(self, batch: Batch, index: int) -> None:  # type: ignore[override]
        """A whole step: the schedule runs the backward, too."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        taken = batch.inputs if self.stage.is_first else ()
        self.schedule.step(*taken, target=batch.target, losses=losses, return_outputs=False)
        optimizer.step()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            schedule.step()
        if losses:
            self.count(torch.stack(losses).mean().detach(), batch.counted)

    def learning(self, on: bool) -> None:
        """Of the stage: it may have layers that the model itself has not."""
        self.stage.submod.train(on)

    def outputs(self, batch: Batch) -> Any:
        """Those of the last stage."""
        return self.schedule.eval(
            *(batch.inputs if self.stage.is_first else ()), target=batch.target, losses=[]
        )


class PipelineStrategy(DDPStrategy):
    """Processes as several pipelines of `stages` stages."""

    def __init__(self, stages: int, **options: Any) -> None:
        super().__init__(**options)
        self.stages = stages

    @property
    def learner(self) -> PipelineLearner:
        """What it trains."""
        if not isinstance(self.lightning_module, PipelineLearner):
            raise TypeError("a bug: a pipeline needs a PipelineLearner")
        return self.lightning_module

    def configure_ddp(self) -> None:
        """Called when the model is on its device: each process becomes a stage of a pipeline."""
        sizes = (self.num_nodes * self.num_processes // self.stages, self.stages)
        mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=("data", "stage"))
        self.learner.become_stage(mesh)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The whole model, on the first process."""
        return _joined({f"{PREFIX}{name}": each for name, each in self.learner.mine.items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of all parameters, numbered as they are in the whole model."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        numbers = self._numbers()
        found = _joined({numbers[own]: each for own, each in state["state"].items()})
        groups = [{**group, "params": self._trained()} for group in state["param_groups"]]
        return {"state": found, "param_groups": groups}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take what belongs to this stage."""
        (state,) = checkpoint["optimizer_states"]
        numbers = self._numbers()
        own = {
            at: state["state"][each] for at, each in enumerate(numbers) if each in state["state"]
        }
        groups = [{**group, "params": list(range(len(numbers)))} for group in state["param_groups"]]
        for optimizer in self.optimizers:
            optimizer.load_state_dict({"state": own, "param_groups": groups})

    def _trained(self) -> list[int]:
        return list(range(len(list(self.learner.learns.parameters()))))

    def _numbers(self) -> list[int]:
        """The place of each parameter of this stage among those of the whole model."""
        own = {id(each): at for at, each in enumerate(self.learner.learns.parameters())}
        return [own[id(each)] for each in self.learner.parameters_here()]


def _joined(part: dict[Any, Any]) -> dict[Any, Any]:
    """The parts of all processes; on the first one only, since it alone writes."""
    first = distributed.get_rank() == 0
    parts: list[Any] | None = [None] * distributed.get_world_size() if first else None
    distributed.gather_object(_on_cpu(part), parts)
    return {name: each for found in parts or () for name, each in found.items()}


def _on_cpu(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.detach().cpu()
    if isinstance(found, dict):
        return {name: _on_cpu(each) for name, each in found.items()}
    return found
