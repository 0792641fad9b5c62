"""The one backend of every model: runs a batch of requests through a checkpoint.

Triton calls ``execute`` with the requests that its dynamic batcher put together.
Their tensors are joined along the batch dimension, the checkpoint runs once, and
each request is given its own rows of the outputs that it asked for. A checkpoint
that was made for one batch size may give more rows than it was sent: those beyond
the batch are padding and are left out.

A batch stands or falls as a whole: when the checkpoint raises, every request of
the batch is answered with an error, and the next batch is tried afresh.
"""

import base64
import hashlib
import os

import numpy as np
import triton_python_backend_utils as pb_utils


def tile_table(config):
    """What the checkpoint is given for each sample of a tile that comes as bytes.

    Returns:
        an array (3, 256): for red, green, blue the value of each sample. None for a model
        whose tile comes as it is to be passed on.

    Raises:
        ValueError: the configuration has no table for such a tile, or not the whole of it.
    """
    if all(i["data_type"] != "TYPE_UINT8" for i in config["input"]):
        return None
    try:
        table, dtype, digest = (
            config["parameters"][key]["string_value"] for key in ("tile_table", "tile_table_dtype", "tile_table_sha256")
        )
        table = base64.b64decode(table, validate=True)
        if hashlib.sha256(table).hexdigest() != digest:
            raise ValueError("the SHA-256 of tile_table is another than tile_table_sha256")
        return np.frombuffer(table, np.dtype(dtype).newbyteorder("<")).reshape(3, 256)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the model's tile comes as bytes and its table cannot be read ({error!r});"
            " make its config.pbtxt anew with gateway repository build or gateway repository convert"
        ) from error


class TileLookup:
    """Writes tiles of bytes as a checkpoint takes them, on the CPU.

    Where a channel has an even number of samples, two neighbours are looked up at once, in
    a table of all pairs: that is half the steps, and the table stays in the core's cache.
    """

    def __init__(self, table, dims):
        """Prepare for table, (3, 256), and tiles of dims, (3, height, width); -1 is any."""
        self.dtype = table.dtype
        self._samples, together = np.uint8, 1
        if dims[1] * dims[2] % 2 == 0:
            self._samples, together = np.uint16, 2
            pairs = np.empty((3, 256, 256, 2), table.dtype)
            pairs[..., 0] = table[:, None, :]  # the first of two bytes is the lower
            pairs[..., 1] = table[:, :, None]
            table = pairs
        self._values = table.reshape(3, -1).view(f"u{together * self.dtype.itemsize}")

    def write(self, parts, out):
        """Write the tiles of all parts, each (rows, 3, height, width), to out; returns out."""
        rows = iter(out.reshape(len(out), 3, -1).view(self._values.dtype))
        for part in parts:
            for tile in part.reshape(len(part), 3, -1).view(self._samples):
                for values, samples, to in zip(self._values, tile, next(rows), strict=True):
                    # Any mode but the default writes to out without a copy; none has anything to do here.
                    np.take(values, samples, out=to, mode="wrap")
        return out


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
        dims = [[int(n) for n in i["dims"]] for i in config["input"] if i["data_type"] == "TYPE_UINT8"]
        self.lookup = TileLookup(tile_table(config), dims[0]) if dims else None

    def forward(self, inputs):
        """Run one batch.

        Args:
            inputs: arrays in the order of the model's inputs, each (rows, ...).

        Returns:
            arrays in the order of the model's outputs, each (at least rows, ...).
        """
        return self._session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)))


class AotiCheckpoint:
    """A model.pt2 of torch's AOTInductor, run on the device that it was compiled for.

    The parameters that ``gateway repository build`` took from the checkpoint's metadata
    say, for each input, its type and how many dimensions it has: Triton sends one
    number a row as (rows, 1), where the checkpoint may take (rows,).
    """

    file_name = "model.pt2"
    lookup = None  # tiles of bytes are looked up on the device

    def __init__(self, path, config, device):
        """Load the package onto device: None for the CPU, else the number of a GPU."""
        import torch
        import torch._inductor  # torch alone does not bring aoti_load_package

        def parameter(name, otherwise):
            return config["parameters"].get(name, {"string_value": otherwise})["string_value"]

        self._torch = torch
        self._device = torch.device("cpu") if device is None else torch.device("cuda", device)
        if device is None:
            torch.set_num_threads(int(parameter("intra_op_threads", "1")))
        self._dtypes = [getattr(torch, name) for name in parameter("input_dtypes", "").split(",") if name]
        self._ranks = [int(rank) for rank in parameter("input_ranks", "").split(",") if rank]
        self._fixed_batch = int(parameter("fixed_batch", "0"))
        table = tile_table(config)
        if table is not None:
            self._table = torch.from_numpy(table.flatten()).to(self._device)
            self._channels = 256 * torch.arange(3, dtype=torch.int32, device=self._device).reshape(3, 1, 1)
        self._model = torch._inductor.aoti_load_package(path, device_index=-1 if device is None else device)

    def forward(self, inputs):
        """Run one batch.

        Args:
            inputs: arrays in the order of the model's inputs, each (rows, ...).

        Returns:
            arrays in the order of the model's outputs, each (rows, ...); those in half
            precision are widened to float32.

        Raises:
            RuntimeError: the forward pass, the device or a copy failed. A device runs
                behind the calls that feed it, so its failures show wherever it is waited
                for. All of that is in one block, which ends only when the results are on
                the host: no failure of this batch can show up in the next.
        """
        torch, rows = self._torch, len(inputs[0])
        try:
            with torch.inference_mode():
                outputs = self._model(*[self._tensor(i, array) for i, array in enumerate(inputs)])
                outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                return [self._array(output[:rows]) for output in outputs]
        except Exception as error:
            raise RuntimeError(f"the forward pass failed: {error}") from error

    def _tensor(self, i, array):
        """Input i as the checkpoint takes it."""
        torch = self._torch
        tensor = torch.from_numpy(array).to(self._device)
        if tensor.dtype == torch.uint8:  # a tile, looked up on the device: it took less to get there
            tensor = self._table[tensor.int() + self._channels]
        if self._fixed_batch > len(tensor):
            padding = tensor.new_zeros((self._fixed_batch - len(tensor), *tensor.shape[1:]))
            tensor = torch.cat([tensor, padding])
        if self._ranks:
            tensor = tensor.flatten(self._ranks[i] - 1)
        return tensor.to(self._dtypes[i]) if self._dtypes else tensor

    def _array(self, output):
        """An output as Triton is told that it is."""
        output = output.cpu()
        if output.dtype in (self._torch.float16, self._torch.bfloat16):
            output = output.float()
        return output.contiguous().numpy()


class TritonPythonModel:
    """A model as Triton sees it; inputs and outputs are taken by position."""

    def initialize(self, args):
        """Load the checkpoint out of the model's version folder."""
        import json

        config = json.loads(args["model_config"])
        self._inputs = [i["name"] for i in config["input"]]
        self._outputs = [o["name"] for o in config["output"]]
        self._dtypes = [pb_utils.triton_string_to_numpy(o["data_type"]) for o in config["output"]]
        self._memory = {}  # by input, what batches are joined in
        folder = os.path.join(args["model_repository"], args["model_version"])
        aoti, onnx = (os.path.join(folder, kind.file_name) for kind in (AotiCheckpoint, OnnxCheckpoint))
        if os.path.exists(aoti):
            device = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
            self._checkpoint = AotiCheckpoint(aoti, config, device)
        elif os.path.exists(onnx):
            self._checkpoint = OnnxCheckpoint(onnx, config)
        else:
            raise FileNotFoundError(f"no checkpoint for model {args['model_name']}: {folder} holds none")

    def execute(self, requests):
        """Answer each request with its rows; an exception fails the whole batch."""
        tensors = [[pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in self._inputs] for r in requests]
        rows = [t[0].shape[0] for t in tensors]
        outputs = self._forward(list(map(self._join, self._inputs, zip(*tensors, strict=True))), sum(rows))
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

    def _join(self, name, parts):
        """The rows of all requests in one input, in memory that is kept for the next batch.

        To be given new memory for a batch of large tiles can take longer than to fill it.
        """
        lookup = self._checkpoint.lookup if parts[0].dtype == np.uint8 else None
        if len(parts) == 1 and not lookup:
            return parts[0]  # joining copies
        rows = sum(map(len, parts))
        memory = self._memory.get(name, ())
        if len(memory) < rows:
            dtype = lookup.dtype if lookup else parts[0].dtype
            memory = self._memory[name] = np.empty((rows, *parts[0].shape[1:]), dtype)
        return lookup.write(parts, memory[:rows]) if lookup else np.concatenate(parts, out=memory[:rows])

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
