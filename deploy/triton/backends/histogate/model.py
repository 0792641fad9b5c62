"""The one backend of every model: runs a batch of requests through a checkpoint.

Triton calls ``execute`` with the requests that its dynamic batcher put together.
Their tensors are joined along the batch dimension, the checkpoint runs once, and
each request is given its own rows of the outputs that it asked for. A checkpoint
that was made for one batch size may give more rows than it was sent: those beyond
the batch are padding and are left out.

A batch stands or falls as a whole: when the checkpoint raises, every request of
the batch is answered with an error, and the next batch is tried afresh.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class OnnxCheckpoint:
    """A model.onnx, run on the CPU by onnxruntime."""

    file_name = "model.onnx"

    def __init__(self, path, config):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # One thread for each instance: instances, not threads, are how this scales.
        threads = config["parameters"].get("intra_op_threads", {"string_value": "1"})
        options.intra_op_num_threads = int(threads["string_value"])
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = [i.name for i in self._session.get_inputs()]
        self._outputs = [o.name for o in self._session.get_outputs()]

    def forward(self, inputs):
        """Run one batch.

        Args:
            inputs: arrays in the order of the model's inputs, each (rows, ...).

        Returns:
            arrays in the order of the model's outputs, each (at least rows, ...).
        """
        return self._session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)))


class TritonPythonModel:
    """A model as Triton sees it; inputs and outputs are taken by position."""

    def initialize(self, args):
        """Load the checkpoint out of the model's version folder."""
        import json

        config = json.loads(args["model_config"])
        self._inputs = [i["name"] for i in config["input"]]
        self._outputs = [o["name"] for o in config["output"]]
        self._dtypes = [pb_utils.triton_string_to_numpy(o["data_type"]) for o in config["output"]]
        folder = os.path.join(args["model_repository"], args["model_version"])
        path = os.path.join(folder, OnnxCheckpoint.file_name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"no checkpoint for model {args['model_name']}: {path} does not exist")
        self._checkpoint = OnnxCheckpoint(path, config)

    def execute(self, requests):
        """Answer each request with its rows; an exception fails the whole batch."""
        tensors = [[pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in self._inputs] for r in requests]
        rows = [t[0].shape[0] for t in tensors]
        # A batch of one request is passed on as it is; joining copies.
        joined = tensors[0] if len(requests) == 1 else [np.concatenate(parts) for parts in zip(*tensors, strict=True)]
        outputs = self._forward(joined, sum(rows))
        responses = []
        first = 0
        for request, count in zip(requests, rows, strict=True):
            wanted = set(request.requested_output_names())
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor(name, output[first : first + count])
                        for name, output in zip(self._outputs, outputs, strict=True)
                        if name in wanted
                    ]
                )
            )
            first += count
        return responses

    def _forward(self, inputs, rows):
        """Run the checkpoint and hold what it returns against the configuration.

        Returns:
            arrays in the order of the configuration's outputs, each (at least rows, ...).
        """
        outputs = self._checkpoint.forward(inputs)
        if len(outputs) != len(self._outputs):
            raise RuntimeError(f"the checkpoint gave {len(outputs)} outputs, its configuration {len(self._outputs)}")
        for name, dtype, output in zip(self._outputs, self._dtypes, outputs, strict=True):
            if output.shape[0] < rows:
                raise RuntimeError(f"output {name} has {output.shape[0]} rows for a batch of {rows}")
            if output.dtype != dtype:
                raise RuntimeError(f"output {name} is {output.dtype}, the configuration says {np.dtype(dtype)}")
        return outputs
