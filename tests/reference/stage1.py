"""What stage 1 costs in Python: the reference of tests/stage1bench.

    stage1.py encode FORMAT OPTIONS TILE OUT    a tile in another format, by Pillow
    stage1.py serve MEAN STD BODY...            the work itself, on request bodies

OPTIONS are those of Image.save, as JSON; MEAN and STD are three numbers each, separated
by commas. ``serve`` answers a line for each line that it reads:

    time VARIANT N      seconds of processor time for one body, the mean over N
    digest VARIANT I    SHA-256 of the tensor of body I, counted from 0

The bodies are taken in turn. Both variants go from the bytes of a body to a contiguous
float32 tensor of 3 x H x W, every step in float32, and end in the same bits:

``plain`` is how such a server is mostly written: the standard library's json, the
formula on H x W x 3 as it stands, then a transposed copy.

``tuned`` is what a Python server can do at best without C of its own: orjson, the
transposition in the cast from bytes, where it is cheapest, and the formula in place. A
table of 256 values a channel and numpy.take, which is quick in C, takes half as long again.
"""

import base64
import hashlib
import io
import json
import sys
import time

import numpy as np
import orjson
from PIL import Image


def pixels(encoded):
    """The bytes of an image -> (H, W, 3) uint8."""
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


class Plain:
    """As such a server is mostly written."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def tensor(self, body):
        """The JSON body of a request -> its tile as (3, H, W) float32."""
        request = json.loads(body)
        rgb = pixels(base64.b64decode(request["image_data"]))
        scaled = rgb.astype(np.float32) / np.float32(255)
        return np.ascontiguousarray(((scaled - self.mean) / self.std).transpose(2, 0, 1))


class Tuned:
    """What a Python server can do at best without C of its own."""

    def __init__(self, mean, std):
        self.mean, self.std = mean[:, None, None], std[:, None, None]

    def tensor(self, body):
        """The JSON body of a request -> its tile as (3, H, W) float32."""
        request = orjson.loads(body)
        rgb = pixels(base64.b64decode(request["image_data"]))
        planes = rgb.transpose(2, 0, 1).astype(np.float32, order="C")
        planes /= np.float32(255)
        planes -= self.mean
        planes /= self.std
        return planes


def numbers(text):
    """Three decimals as float32, by way of float64, as a tensor library takes Python floats."""
    return np.array(text.split(","), np.float64).astype(np.float32)


def serve(mean, std, files):
    bodies = []
    for path in files:
        with open(path, "rb") as file:
            bodies.append(file.read())
    variants = {"plain": Plain(numbers(mean), numbers(std)), "tuned": Tuned(numbers(mean), numbers(std))}
    for line in sys.stdin:
        command, variant, number = line.split()
        variant, n = variants[variant], int(number)
        if command == "digest":
            print(hashlib.sha256(variant.tensor(bodies[n]).tobytes()).hexdigest(), flush=True)
            continue
        start = time.process_time_ns()
        for i in range(n):
            variant.tensor(bodies[i % len(bodies)])
        print((time.process_time_ns() - start) / n / 1e9, flush=True)


def main():
    command, *rest = sys.argv[1:]
    if command == "serve":
        serve(rest[0], rest[1], rest[2:])
        return
    image_format, options, tile, out = rest
    with Image.open(tile) as image:
        image.convert("RGB").save(out, image_format, **json.loads(options))


if __name__ == "__main__":
    main()
