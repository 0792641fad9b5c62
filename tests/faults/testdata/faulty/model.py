"""A backend for tests: the product's own, with faults that a test asks for.

A test writes a fault's name into the file ``fault`` in the model's folder. The next
batch of callers meets it, once; the gateway's own probes, tiles of zeros, do not.
``sticky`` is met by every batch, probes too, until the model is loaded again.
"""

import importlib.util
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

_product = pathlib.Path(__file__).parent.parent / "histogate" / "model.py"
_spec = importlib.util.spec_from_file_location("histogate_backend", _product)
_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_backend)


class TritonPythonModel(_backend.TritonPythonModel):
    """Fails in the way that is asked for."""

    def initialize(self, args):
        """Load the checkpoint; what stuck to the process before is gone."""
        super().initialize(args)
        self._fault = pathlib.Path(args["model_repository"]) / "fault"
        self._stuck = False

    def _asked(self, requests):
        name = self._inputs[0]
        if not any(pb_utils.get_input_tensor_by_name(r, name).as_numpy().any() for r in requests):
            return ""
        try:
            fault = self._fault.read_text()
            self._fault.unlink()
        except FileNotFoundError:
            return ""
        return fault

    def execute(self, requests):
        """Answer the requests, or fail as asked."""
        fault = self._asked(requests)
        self._stuck = self._stuck or fault == "sticky"
        if self._stuck or fault == "raise":
            raise RuntimeError("simulated: CUDA error: out of memory")
        if fault == "abort":
            os.abort()
        if fault == "hang":
            time.sleep(60)
        if fault == "none":
            return None
        responses = super().execute(requests)
        spoil = {
            "nan": lambda output: np.full_like(output, np.nan),
            "shape": lambda output: output[:, :-1],
            "rows": lambda output: np.concatenate([output, output]),
            "dtype": lambda output: output.astype(np.float64),
        }.get(fault)
        if spoil:
            responses = [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor(t.name(), np.ascontiguousarray(spoil(t.as_numpy()))) for t in r.output_tensors()]
                )
                for r in responses
            ]
        return responses[:-1] if fault == "fewer" else responses
