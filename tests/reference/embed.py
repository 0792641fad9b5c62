"""The reference answer for a tile: Pillow, numpy and onnxruntime, one tile at a time.

    embed.py MODEL.onnx MEAN STD TILE...

MEAN and STD are three numbers each, separated by commas, in the order red, green,
blue. Prints one JSON object: ``versions`` of what computed it, and under ``tiles``,
by file name, the SHA-256 of the RGB bytes (H x W x 3, row-major), the SHA-256 of the
tensor (3 x H x W, little-endian float32) and, under ``outputs``, each output's
little-endian bytes in base64.
"""

import base64
import hashlib
import json
import platform
import sys

import numpy as np
import onnxruntime
import PIL
from PIL import Image


def rgb(path):
    """The picture as (H, W, 3) uint8, as the models were trained on it."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def tensor(pixels, mean, std):
    """(H, W, 3) uint8 -> (3, H, W) float32: (v/255 - mean)/std, each step in float32."""
    scaled = pixels.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(((scaled - mean) / std).transpose(2, 0, 1))


def main():
    model, mean, std, *files = sys.argv[1:]
    mean = np.array(mean.split(","), np.float64).astype(np.float32)
    std = np.array(std.split(","), np.float64).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    tiles = {}
    for path in files:
        pixels = rgb(path)
        tile = tensor(pixels, mean, std)
        outputs = session.run(names, {session.get_inputs()[0].name: tile[np.newaxis]})
        tiles[path] = {
            "sha256_rgb": hashlib.sha256(pixels.tobytes()).hexdigest(),
            "sha256_tensor": hashlib.sha256(tile.tobytes()).hexdigest(),
            "outputs": {n: base64.b64encode(o[0].tobytes()).decode() for n, o in zip(names, outputs, strict=True)},
        }
    versions = {
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    json.dump({"versions": versions, "tiles": tiles}, sys.stdout)


if __name__ == "__main__":
    main()
