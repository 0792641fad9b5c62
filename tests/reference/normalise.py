"""What numpy makes of samples: the reference of the normalised tile.

    normalise.py table MEAN STD            the 3 x 256 normalised values, by channel and sample
    normalise.py tile MEAN STD FILE...     one SHA-256 a file and type, of the 3 x H x W tensor
    normalise.py float16 < float32s        each little-endian float32 as binary16

MEAN and STD are three numbers each, separated by commas, in the order red, green, blue.
``table`` writes 768 float32 and then 768 float16, little-endian; ``float16`` writes as
many values as it reads. ``tile`` prints the digests in hexadecimal, a line a file: that
of the float32 tensor, a space, and that of its cast to float16.
"""

import hashlib
import sys

import numpy as np
from PIL import Image


def tensor(pixels, mean, std):
    """(H, W, 3) uint8 -> (3, H, W) float32: (v/255 - mean)/std, each step in float32."""
    scaled = pixels.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(((scaled - mean) / std).transpose(2, 0, 1))


def numbers(decimals):
    """Three decimals as float32, by way of float64, as a tensor library takes Python floats."""
    return np.array(decimals, np.float64).astype(np.float32)


def main():
    command, *rest = sys.argv[1:]
    np.seterr(over="ignore")  # beyond float16 is infinity, without a warning
    if command == "float16":
        values = np.frombuffer(sys.stdin.buffer.read(), "<f4")
        sys.stdout.buffer.write(values.astype("<f2").tobytes())
        return
    mean, std, files = numbers(rest[0].split(",")), numbers(rest[1].split(",")), rest[2:]
    if command == "table":
        samples = np.arange(256, dtype=np.uint8)
        values = tensor(np.repeat(samples, 3).reshape(1, 256, 3), mean, std)
        sys.stdout.buffer.write(values.astype("<f4").tobytes() + values.astype("<f2").tobytes())
        return
    for path in files:
        with Image.open(path) as image:
            values = tensor(np.asarray(image.convert("RGB")), mean, std)
        print(*(hashlib.sha256(values.astype(t).tobytes()).hexdigest() for t in ("<f4", "<f2")))


if __name__ == "__main__":
    main()
