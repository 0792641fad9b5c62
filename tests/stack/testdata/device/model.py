"""A backend for measurements: the product's own, on a device that is slow.

Behind the checkpoint's own forward pass each batch takes the time that the model's
configuration asks for, asleep, as a device that computes beside the processor would:
``device_batch_ms`` for any batch and ``device_row_ms`` for each of its rows.
"""

import importlib.util
import json
import pathlib
import time

_product = pathlib.Path(__file__).parent.parent / "histogate" / "model.py"
_spec = importlib.util.spec_from_file_location("histogate_backend", _product)
_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_backend)


class TritonPythonModel(_backend.TritonPythonModel):
    """Takes longer."""

    def initialize(self, args):
        """Load the checkpoint, and read how slow the device is."""
        super().initialize(args)
        parameters = json.loads(args["model_config"])["parameters"]
        self._batch, self._row = (
            float(parameters[name]["string_value"]) / 1000 for name in ("device_batch_ms", "device_row_ms")
        )

    def _forward(self, inputs, rows):
        """Run the checkpoint, then wait for the device."""
        outputs = super()._forward(inputs, rows)
        time.sleep(self._batch + rows * self._row)
        return outputs
