"""A backend for tests: the product's own, behind a gate.

While there is a file ``hold`` in the model's folder no batch is answered.
"""

import importlib.util
import pathlib
import time

_product = pathlib.Path(__file__).parent.parent / "histogate" / "model.py"
_spec = importlib.util.spec_from_file_location("histogate_backend", _product)
_backend = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_backend)


class TritonPythonModel(_backend.TritonPythonModel):
    """Answers when it is let."""

    def initialize(self, args):
        """Load the checkpoint."""
        super().initialize(args)
        self._hold = pathlib.Path(args["model_repository"]) / "hold"

    def execute(self, requests):
        """Answer the requests, once the gate is open."""
        while self._hold.exists():
            time.sleep(0.005)
        return super().execute(requests)
