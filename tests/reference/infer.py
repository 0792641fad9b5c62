"""The reference answer for a request: Pillow, numpy and onnxruntime, one request at a time.

    infer.py MODEL_FOLDER < JOB

JOB is a JSON object: ``spec``, the model's spec.yaml as JSON, and ``samples``, a list
of objects with ``tile``, the path of an image, and ``bulk_rna``, a list of numbers or
null. The checkpoint and the lists that the spec keeps in files are read from the
folder. Prints one JSON object: ``versions`` of what computed it, and ``samples``, for
each of the job's an object with the SHA-256 of the RGB bytes (H x W x 3, row-major)
and of the tile's tensor (3 x H x W, little-endian), and under ``outputs``, by name,
what each output is after its transforms: little-endian float32 in base64.
"""

import base64
import csv
import hashlib
import json
import pathlib
import platform
import sys

import numpy as np
import onnxruntime
import PIL
from normalise import numbers, tensor
from PIL import Image
from transforms import run


def rgb(path):
    """The picture as (H, W, 3) uint8, as the models were trained on it."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def with_lists(pipeline, folder):
    """The steps of a pipeline with the lists in them that the spec keeps in files."""
    steps = [dict(step) for step in pipeline or []]
    for step in steps:
        for key in ("mean", "std", "indices"):
            if key + "_file" in step:
                with open(folder / step[key + "_file"], newline="") as file:
                    column = [row[0] for row in csv.reader(file)][1:]
                step[key] = [int(v) if key == "indices" else float(v) for v in column]
    return steps


def model_input(spec, tile, bulk_rna, folder):
    """The tensor of one input, with a batch dimension of one."""
    shape, dtype = (1, *spec["shape"]), np.dtype(spec["dtype"])
    if spec["source"] == "tile":
        return tile[np.newaxis].astype(dtype)
    if spec["source"] == "bulk_rna" and bulk_rna is not None:
        row = np.array([bulk_rna], np.float64).astype(np.float32)
        return run(with_lists(spec.get("transforms"), folder), row).reshape(shape)
    return np.full(shape, spec.get("value", 0), dtype)


def main():
    folder = pathlib.Path(sys.argv[1])
    job = json.load(sys.stdin)
    spec = job["spec"]
    mean, std = (numbers(spec["tile"][key]) for key in ("mean", "std"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    samples = []
    for sample in job["samples"]:
        pixels = rgb(sample["tile"])
        tile = tensor(pixels, mean, std)
        inputs = [model_input(i, tile, sample["bulk_rna"], folder) for i in spec["inputs"]]
        forward = session.run(None, dict(zip(names, inputs, strict=True)))
        outputs = {}
        for output, values in zip(spec["outputs"], forward, strict=True):
            row = values[:1].reshape(1, -1)  # a padded batch has more rows
            row = run(with_lists(output.get("transforms"), folder), row)
            outputs[output["name"]] = base64.b64encode(row.astype("<f4").tobytes()).decode()
        samples.append(
            {
                "sha256_rgb": hashlib.sha256(pixels.tobytes()).hexdigest(),
                "sha256_tensor": hashlib.sha256(tile.astype("<f4").tobytes()).hexdigest(),
                "outputs": outputs,
            }
        )
    versions = {
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    json.dump({"versions": versions, "samples": samples}, sys.stdout)


if __name__ == "__main__":
    main()
