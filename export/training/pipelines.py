"""Trains a model in stages as a pipeline, or as several pipelines with DDP over them.

Ranks are ordered by pipeline, then by stage. A checkpoint has the whole model and its optimizer's
state, as a single process would write them, so every strategy can read it.
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
from models.definitions.training import Share, TrainingBatch

Cut = Callable[[nn.Module], Sequence[nn.Module]]


class PureStage(PipelineStage):
    """Infers shapes without side effects, although torch runs the stage on uninitialized memory.

    Batch norms would add that memory to their statistics, even NaN, and dropout would draw numbers.
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
        cut: splits the model into stages.
        microbatches: of a pipeline's batch.
        options: see `Learner`.
    """

    def __init__(self, cut: Cut, microbatches: int, *options: Any) -> None:
        super().__init__(*options)
        self.automatic_optimization = False
        self.cut = cut
        self.microbatches = microbatches
        self.mesh: DeviceMesh | None = None
        self.mine: dict[str, torch.Tensor] = {}  # name in the model -> this stage's tensor

    @property
    def share(self) -> Share:
        """The samples of this pipeline, the same for all its stages."""
        if self.mesh is None:
            raise RuntimeError("a bug: the share is read before the processes exist")
        data = self.mesh["data"]
        return Share(data.get_local_rank(), data.size())

    def become_stage(self, mesh: DeviceMesh) -> None:
        """Keep one stage of the model and free the others."""
        self.mesh = mesh
        index, stages = mesh["stage"].get_local_rank(), mesh["stage"].size()
        own = self.cut(self.module)[index]
        state = self.module.state_dict(keep_vars=True)
        own_ids = {id(each) for each in (*own.parameters(), *own.buffers())}
        self.mine = {name: each for name, each in state.items() if id(each) in own_ids}
        for name, each in state.items():
            if name not in self.mine:
                each.data = each.data.new_empty(0)
        stage_module: nn.Module = own.train()
        if mesh["data"].size() > 1 and any(each.requires_grad for each in own.parameters()):
            stage_module = DistributedDataParallel(own, process_group=mesh.get_group("data"))
        self.stage = PureStage(
            stage_module, index, stages, self.device, group=mesh.get_group("stage")
        )
        self.schedule = Schedule1F1B(self.stage, self.microbatches, loss_fn=self.how.loss)

    def parameters_here(self) -> list[nn.Parameter]:
        """The parameters of the stage."""
        return [each for each in self.mine.values() if isinstance(each, nn.Parameter)]

    def training_step(self, batch: TrainingBatch, index: int) -> None:  # type: ignore[override]
        """Run a whole step: the schedule includes the backward."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = batch.inputs if self.stage.is_first else ()
        self.schedule.step(*inputs, target=batch.target, losses=losses, return_outputs=False)
        optimizer.step()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            schedule.step()
        if losses:
            self.count(torch.stack(losses).mean().detach(), batch.sample_count)

    def learning(self, on: bool) -> None:
        """Switch the mode of the stage, which may have layers that the model does not have."""
        self.stage.submod.train(on)

    def outputs(self, batch: TrainingBatch) -> Any:
        """Return the outputs of the last stage."""
        return self.schedule.eval(
            *(batch.inputs if self.stage.is_first else ()), target=batch.target, losses=[]
        )


class PipelineStrategy(DDPStrategy):
    """Arranges the processes as several pipelines of `stages` stages."""

    def __init__(self, stages: int, **options: Any) -> None:
        super().__init__(**options)
        self.stages = stages

    @property
    def learner(self) -> PipelineLearner:
        """The trained module."""
        if not isinstance(self.lightning_module, PipelineLearner):
            raise TypeError("a bug: a pipeline needs a PipelineLearner")
        return self.lightning_module

    def configure_ddp(self) -> None:
        """Make each process a stage of a pipeline, once the model is on its device."""
        sizes = (self.num_nodes * self.num_processes // self.stages, self.stages)
        mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=("data", "stage"))
        self.learner.become_stage(mesh)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole model, on the first process."""
        return _join({f"{PREFIX}{name}": each for name, each in self.learner.mine.items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of all parameters, numbered as in the whole model."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        numbers = self._numbers()
        whole = _join({numbers[own]: each for own, each in state["state"].items()})
        groups = [{**group, "params": self._trained_indices()} for group in state["param_groups"]]
        return {"state": whole, "param_groups": groups}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the part that belongs to this stage."""
        (state,) = checkpoint["optimizer_states"]
        numbers = self._numbers()
        own = {
            at: state["state"][each] for at, each in enumerate(numbers) if each in state["state"]
        }
        groups = [{**group, "params": list(range(len(numbers)))} for group in state["param_groups"]]
        for optimizer in self.optimizers:
            optimizer.load_state_dict({"state": own, "param_groups": groups})

    def _trained_indices(self) -> list[int]:
        return list(range(len(list(self.learner.learns.parameters()))))

    def _numbers(self) -> list[int]:
        """Return the index of each parameter of this stage in the whole model."""
        own = {id(each): at for at, each in enumerate(self.learner.learns.parameters())}
        return [own[id(each)] for each in self.learner.parameters_here()]


def _join(part: dict[Any, Any]) -> dict[Any, Any]:
    """Join the parts of all processes, only on the first one, which writes them."""
    first = distributed.get_rank() == 0
    parts: list[Any] | None = [None] * distributed.get_world_size() if first else None
    distributed.gather_object(_on_cpu(part), parts)
    return {name: each for content in parts or () for name, each in content.items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(each) for name, each in value.items()}
    return value
