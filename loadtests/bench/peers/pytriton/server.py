"""PyTriton for the same work: Triton's dynamic batcher, batches of up to 64, REST."""

from __future__ import annotations

import os
import signal
import sysconfig

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from loadtests.bench.peers.model import MAX_BATCH, PORT, WORKERS, model_here
from models.tensors import Array

if __name__ == "__main__":
    # Triton's backend loads libpython by its name: this interpreter's, not the system's
    os.environ["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # PyTriton cleans up after it
    models = [model_here() for _ in range(WORKERS)]  # a function for each instance of the model

    def infer_by(which: int) -> object:
        """Return the function of one instance: one forward for the items of all requests."""

        @batch  # type: ignore[untyped-decorator]
        def infer(input: Array) -> dict[str, Array]:
            return {"scores": models[which].scores(input)}

        return infer

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(os.environ[PORT]),
        allow_grpc=False,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="model",
            infer_func=[infer_by(which) for which in range(WORKERS)],
            inputs=[Tensor(name="input", dtype=np.float32, shape=models[0].shape)],
            outputs=[Tensor(name="scores", dtype=np.float32, shape=(-1,))],
            # it forms batches of queued requests and does not wait for more
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
        )
        triton.serve()
