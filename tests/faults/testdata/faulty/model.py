"""A backend for tests: the product's own, with faults that a test asks for.

A test writes a fault's name into the file ``fault`` in the model's folder. The next
batch of callers meets it, once; the gateway's own probes, tiles of zeros, do not.
Those that begin with ``sticky`` are met by every batch, probes too, until the model is
loaded again; ``server`` until Triton itself is started again. The file ``pace`` has
each batch of callers take as many seconds as it says, the file ``load`` the next load
hang.
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

_FOREVER = 60  # seconds

_SPOILS = {
    "nan": lambda output: np.full_like(output, np.nan),
    "shape": lambda output: output[:, :-1],
    "rank": lambda output: output[:, :, None],
    "rows": lambda output: np.concatenate([output, output]),
    "dtype": lambda output: output.astype(np.float64),
}


def _take(path):
    """What a file says, once; empty when it is not there."""
    try:
        text = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return ""
    return text


def _changed(response, name=None, spoil=None):
    outputs = [
        pb_utils.Tensor(name or t.name(), np.ascontiguousarray(spoil(t.as_numpy()) if spoil else t.as_numpy()))
        for t in response.output_tensors()
    ]
    return pb_utils.InferenceResponse(outputs)


class TritonPythonModel(_backend.TritonPythonModel):
    """Fails in the way that is asked for."""

    def initialize(self, args):
        """Load the checkpoint; what stuck to the process before is gone."""
        self._folder = pathlib.Path(args["model_repository"])
        if _take(self._folder / "load"):
            time.sleep(_FOREVER)
        super().initialize(args)
        self._stuck = ""

    def _asked(self, requests):
        """The fault that this batch shall meet, and the first of its requests that is a caller's."""
        name = self._inputs[0]
        callers = (i for i, r in enumerate(requests) if pb_utils.get_input_tensor_by_name(r, name).as_numpy().any())
        first = next(callers, None)
        if first is None:
            return "", None
        pace = self._folder / "pace"
        if pace.exists():
            time.sleep(float(pace.read_text()))
        return _take(self._folder / "fault"), first

    def _rows(self, requests):
        return sum(len(pb_utils.get_input_tensor_by_name(r, self._inputs[0]).as_numpy()) for r in requests)

    def execute(self, requests):
        """Answer the requests, or fail as asked."""
        fault, first = self._asked(requests)
        if fault.startswith("sticky"):
            self._stuck = fault.removeprefix("sticky ")
        if fault == "server":
            (self._folder / "server").write_text(str(os.getppid()))
        fault = self._stuck or fault
        server = self._folder / "server"
        if server.exists() and server.read_text() == str(os.getppid()):
            fault = "raise"
        if fault == "raise" or (fault == "full" and self._rows(requests) > 1):
            raise RuntimeError("simulated: CUDA error: out of memory")
        if fault == "abort":
            os.abort()
        if fault == "hang":
            time.sleep(_FOREVER)
        if fault.startswith("slow"):
            time.sleep(float(fault.removeprefix("slow ")))
        if fault == "none":
            return None
        responses = super().execute(requests)
        if fault == "fewer":
            return responses[:-1]
        if fault == "one error":
            responses[first] = pb_utils.InferenceResponse(error=pb_utils.TritonError("simulated: one row"))
        if fault == "one nan":
            responses[first] = _changed(responses[first], spoil=_SPOILS["nan"])
        if fault == "name":
            responses = [_changed(r, name="other") for r in responses]
        if fault == "no output":
            responses = [pb_utils.InferenceResponse([]) for _ in responses]
        if fault in _SPOILS:
            responses = [_changed(r, spoil=_SPOILS[fault]) for r in responses]
        return responses
