"""A backend for tests: the product's own, but two kinds of tile make it fail.

It raises for a batch with a black tile, and answers one with a white tile with a row
too few. Both are sound requests, so the failure is the shared stage's.
"""

import importlib.util
import pathlib

_product = pathlib.Path(__file__).parent.parent / "histogate" / "model.py"
_spec = importlib.util.spec_from_file_location("histogate_backend", _product)
_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_backend)


class TritonPythonModel(_backend.TritonPythonModel):
    """Fails as a device would: in the middle of a batch."""

    def _forward(self, inputs, rows):
        # The lowest value that a normalised tile can have is a black pixel's.
        black = inputs[0].reshape(rows, -1).max(axis=1) < -2.5
        if black.any():
            raise RuntimeError(f"simulated device error in a batch of {rows}")
        if (inputs[0].reshape(rows, -1).min(axis=1) > 1.38).any():  # the highest, of a white pixel's red
            inputs = [tensor[:-1] for tensor in inputs]
        return super()._forward(inputs, rows)
