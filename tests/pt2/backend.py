"""Holds the backend's way with a package against what a device and Triton can do.

Run by the Go tests with torch's Python. Packages are played by functions, so that
they can fail where a GPU would: behind the call, when the results are waited for.
"""

import base64
import hashlib
import importlib.util
import pathlib
import sys
import types

import numpy as np

BACKEND = pathlib.Path(__file__).parents[2] / "deploy/triton/backends/histogate/model.py"


def load_backend():
    """Import model.py as Triton does, without Triton."""
    sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
    spec = importlib.util.spec_from_file_location("backend", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkpoint(backend, package, **parameters):
    """An AotiCheckpoint whose package is a function."""
    import torch._inductor

    torch._inductor.aoti_load_package = lambda *_args, **_options: package
    config = {
        "input": [{"data_type": "TYPE_UINT8" if "tile_table" in parameters else "TYPE_FP16"}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    return backend.AotiCheckpoint("model.pt2", config, None)


def expect(what, ok):
    """Fail with what was expected."""
    if not ok:
        sys.exit(f"not so: {what}")


def main():
    backend = load_backend()
    expect("the backend imports no torch before a package is loaded", "torch" not in sys.modules)
    import torch

    tile, counts, groups = np.ones((3, 2, 2), np.float16), np.ones((3, 5), np.float32), np.zeros((3, 1), np.int64)

    seen = []

    def package(*inputs):
        seen[:] = inputs
        return inputs[0].flatten(1), inputs[1].bfloat16()

    made = checkpoint(backend, package, input_dtypes="float32,float16,int64", input_ranks="3,2,1", fixed_batch="4")
    outputs = made.forward([tile, counts, groups])
    shapes = [tuple(t.shape) for t in seen]
    expect(f"padded to the fixed batch, probe groups a vector: {shapes}", shapes == [(4, 2, 2), (4, 5), (4,)])
    dtypes = [t.dtype for t in seen]
    expect(f"the types of the metadata: {dtypes}", dtypes == [torch.float32, torch.float16, torch.int64])
    expect("the padding is zeros", all(not t[3:].any() for t in seen))
    expect("rows of the padding left out", [o.shape for o in outputs] == [(3, 4), (3, 5)])
    expect("half precision widened", all(o.dtype == np.float32 for o in outputs) and (outputs[1] == 1).all())

    plain = checkpoint(backend, lambda *inputs: inputs[0] * 2)
    (output,) = plain.forward([counts, groups])
    expect("one tensor rather than a tuple, and no metadata", output.shape == (3, 5) and (output == 2).all())

    # A tile of bytes, of a picture that is not square and in a batch that is padded.
    table = np.linspace(-2, 2, 3 * 256).astype(np.float16).reshape(3, 256)
    of_bytes = checkpoint(
        backend,
        package,
        input_dtypes="float16,float16",
        input_ranks="4,2",
        fixed_batch="4",
        tile_table=base64.b64encode(table.tobytes()).decode(),
        tile_table_dtype="float16",
        tile_table_sha256=hashlib.sha256(table.tobytes()).hexdigest(),
    )
    tiles = np.random.default_rng(1).integers(0, 256, (3, 3, 5, 7), np.uint8)
    of_bytes.forward([tiles, counts])
    want = np.stack([table[channel][tiles[:, channel]] for channel in range(3)], axis=1)
    expect("the table's values, to the bit", seen[0][:3].numpy().tobytes() == want.tobytes())
    expect("and padding", seen[0].shape == (4, 3, 5, 7) and seen[0].dtype == torch.float16 and not seen[0][3:].any())

    class Late:
        """A result whose device fails behind the call."""

        def __getitem__(self, _):
            return self

        def cpu(self):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    failing = True
    late = checkpoint(backend, lambda *inputs: [Late()] if failing else [inputs[0]])
    try:
        late.forward([counts])
        expect("a failure of the device is one of its batch", False)
    except RuntimeError as error:
        expect(f"it is told as one: {error}", str(error).startswith("the forward pass failed: CUDA error"))
    failing = False
    expect("the next batch is tried afresh", (late.forward([counts])[0] == counts).all())
    print("ok")


if __name__ == "__main__":
    main()
