"""Makes models that cost something: h1's stand-in with more layers in it.

    bench_models.py FOLDER [MS...]

For each MS (0, 1 and 5 unless given) FOLDER/MS-ms becomes a model repository that holds
h1 alone, whose checkpoint takes about so many milliseconds of processor time for a tile,
on this machine, with one thread of onnxruntime. 0 is the plain stand-in.

The layers are 3 x 3 convolutions with fixed weights; how many of them is found out by
measuring, so the file for a time differs from machine to machine, and may from run to
run: all that is to be compared must be given the same file. Their result is added to
the plain stand-in's features, and so what holds of that holds of these: each value of
the tile changes the embedding, and a row has the same bits in a batch of any size.
Both are checked on the files made. Printed are the layers, and the time that a tile
takes in batches of 1, 8 and 48, the least of several runs.
"""

import argparse
import pathlib
import shutil
import time

import numpy as np
import onnx
import onnxruntime
import standins
from onnx import helper, numpy_helper

WIDTH = 1536  # of the embedding
CHANNELS = 64  # of the added layers, on the stand-in's 7 x 7 patches
KERNELS = 4  # different ones, in turn: they stay in a core's cache, so that layers cost time and not memory
BATCHES = (1, 8, 48)
SOURCE = pathlib.Path(__file__).parents[2] / "model_repository" / "h1"


def model(layers):
    """h1's stand-in with so many layers added."""
    made = standins.embedding_model("h1", WIDTH)
    if not layers:
        return made
    constants, nodes = {}, []

    def kernel(name, channels_in, channels_out, side, scale):
        constants[name + "_weight"] = standins.weights(name, (channels_out, channels_in, side, side), scale)
        constants[name + "_bias"] = standins.weights(name + "/bias", (channels_out,), 0.1)

    def convolve(source, name, target, padding=0):
        inputs = [source, name + "_weight", name + "_bias"]
        nodes.append(helper.make_node("Conv", inputs, [target], pads=[padding] * 4))

    kernel("widen", standins.CHANNELS, CHANNELS, 1, 0.3)
    for i in range(KERNELS):
        # With this scale the numbers neither grow nor fade from layer to layer.
        kernel(f"layer_{i}", CHANNELS, CHANNELS, 3, 0.075)
    kernel("narrow", CHANNELS, standins.CHANNELS, 1, 0.1)
    convolve("features", "widen", "state_0")
    for i in range(layers):
        convolve(f"state_{i}", f"layer_{i % KERNELS}", f"linear_{i}", padding=1)
        nodes.append(helper.make_node("LeakyRelu", [f"linear_{i}"], [f"state_{i + 1}"], alpha=0.25))
    convolve(f"state_{layers}", "narrow", "addition")
    nodes.append(helper.make_node("Add", ["features", "addition"], ["sum"]))

    at = next(i for i, node in enumerate(made.graph.node) if node.output[0] == "head")
    made.graph.node[at].input[0] = "sum"
    rest = list(made.graph.node[at:])
    del made.graph.node[at:]
    made.graph.node.extend(nodes + rest)
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    onnx.checker.check_model(made, full_check=True)
    return made


def cost(content, rows, runs):
    """Milliseconds of processor time that a tile takes in a batch of so many rows."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    tile = np.random.default_rng(1).uniform(-3, 3, (rows, 3, standins.TILE, standins.TILE)).astype(np.float32)
    times = []
    for _ in range(runs + 1):  # the first one also allocates
        began = time.thread_time()
        session.run(None, {"tile": tile})
        times.append(time.thread_time() - began)
    return min(times[1:]) / rows * 1000


def layers_for(ms):
    """How many layers make a tile take so long: by a guess, which is measured and put right."""
    plain, layers = cost(model(0).SerializeToString(), 8, 25), 40
    for _ in range(2):
        each = (cost(model(layers).SerializeToString(), 8, 25) - plain) / layers
        layers = max(KERNELS, round((ms - plain) / each))
    return layers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("ms", type=float, nargs="*", default=[0, 1, 5])
    args = parser.parse_args()
    for ms in args.ms:
        layers = layers_for(ms) if ms else 0
        content = model(layers).SerializeToString(deterministic=True)
        folder = args.folder / f"{ms:g}-ms" / "h1"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        for name in ("spec.yaml", "config.pbtxt"):
            shutil.copy(SOURCE / name, folder)
        path = folder / "1" / "model.onnx"
        path.write_bytes(content)
        standins.check(path, most=max(BATCHES), ranges={}, rounds=2)
        measured = ", ".join(f"{cost(content, rows, 200 // rows):.2f} at {rows}" for rows in BATCHES)
        print(f"{path}: {layers} layers added; ms a tile: {measured}", flush=True)


if __name__ == "__main__":
    main()
