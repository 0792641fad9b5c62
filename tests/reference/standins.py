"""Makes the stand-in checkpoints: small ONNX models with the real models' shapes.

    standins.py MODEL_REPOSITORY [--check]

They are not the published models and know nothing of tissue. They exist so that
the whole path can be run and held to the bit on a machine without weights:

* a file's bytes, and the weights in it, are the same on every machine: they come
  from an integer generator, seeded by the model's name;
* every sample of every pixel changes the output, and differently by position and
  channel, so that a tensor that is transposed, shifted or scaled shows;
* a row's output has the same bits whatever batch it is in. All layers are
  convolutions, which the runtime computes image by image; a matrix product over
  the whole batch may choose another kernel for another number of rows.

--check proves the last two on the files made.
"""

import argparse
import hashlib
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EMBEDDING = {"h0-mini": 1536, "h0": 1536, "h1": 1536}
TILE = 224
PATCH = 32  # a patch is 32x32 pixels
CHANNELS = 8  # features of a patch


def weights(name, shape, scale):
    """Deterministic weights in +-[scale/2, scale): never near zero.

    splitmix64 (Steele, Lea, Flood 2014) over a counter, seeded by the name's SHA-256.
    """
    seed = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        z = seed + np.arange(1, np.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    fraction = ((z >> np.uint64(12)) & np.uint64(0xFFFF)).astype(np.float32) / np.float32(65536)
    sign = np.where(z >> np.uint64(63), np.float32(1), np.float32(-1))
    return (sign * (np.float32(0.5) + fraction / 2) * np.float32(scale)).reshape(shape)


def embedding_model(name, width):
    """tile (B, 3, 224, 224) float32 -> embedding (B, width) float32."""
    side = TILE // PATCH
    constants = {
        "patch_weight": weights(name + "/patch", (CHANNELS, 3, PATCH, PATCH), 0.05),
        "patch_bias": weights(name + "/patch_bias", (CHANNELS,), 0.5),
        "head_weight": weights(name + "/head", (width, CHANNELS, side, side), 0.1),
        "head_bias": weights(name + "/head_bias", (width,), 0.5),
    }
    nodes = [
        helper.make_node("Conv", ["tile", "patch_weight", "patch_bias"], ["patches"], strides=[PATCH, PATCH]),
        helper.make_node("LeakyRelu", ["patches"], ["features"], alpha=0.25),
        helper.make_node("Conv", ["features", "head_weight", "head_bias"], ["head"]),
        helper.make_node("Flatten", ["head"], ["embedding"]),
    ]
    return finish(
        name,
        nodes,
        constants,
        [helper.make_tensor_value_info("tile", TensorProto.FLOAT, ["batch", 3, TILE, TILE])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])],
    )


def finish(name, nodes, constants, inputs, outputs):
    """The graph as a model that says what it is."""
    graph = helper.make_graph(
        nodes, f"stand-in for {name}", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "histogate stand-in"
    model.doc_string = f"A stand-in with the shapes of {name}. Not the real weights; its answers mean nothing."
    onnx.checker.check_model(model, full_check=True)
    return model


def check(path):
    """Prove that batches do not change a row and that pixels change the output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    tiles = rng.uniform(-3, 3, (48, 3, TILE, TILE)).astype(np.float32)
    run = lambda x: session.run(None, {"tile": x})[0]
    alone = np.concatenate([run(tiles[i : i + 1]) for i in range(48)])
    for size in range(2, 49):
        if run(tiles[:size]).tobytes() != alone[:size].tobytes():
            sys.exit(f"{path}: a batch of {size} gives other bits than its rows alone")
    if not np.isfinite(alone).all() or np.abs(alone).max() > 100:
        sys.exit(f"{path}: outputs up to {np.abs(alone).max()}")
    # One level of one sample, at random places that cover the tile.
    base = np.repeat(tiles[:1], 48, 0)
    for _ in range(40):
        moved = base.copy()
        where = (np.arange(48), rng.integers(0, 3, 48), rng.integers(0, TILE, 48), rng.integers(0, TILE, 48))
        moved[where] += np.float32(1 / 255)
        changed = (run(moved) != alone[0]).any(axis=1)
        if not changed.all():
            sys.exit(f"{path}: a sample that changes nothing")
    largest = np.abs(alone).max()
    print(f"{path}: same bits at batches of 1 to 48, 1,920 samples each change the output, |output| <= {largest:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for name, width in EMBEDDING.items():
        path = args.repository / name / "1" / "model.onnx"
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(embedding_model(name, width).SerializeToString(deterministic=True))
        check(path)


if __name__ == "__main__":
    main()
