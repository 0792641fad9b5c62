"""Makes the stand-in checkpoints: small ONNX models with the real models' shapes.

    standins.py MODEL_REPOSITORY [--check]

They are not the published models and have learnt nothing. They exist so that the
whole path can be run and held to the bit on a machine without weights:

* a file's bytes, and the weights in it, are the same on every machine: they come
  from an integer generator, seeded by the model's name;
* every value of every input changes every output (every sample of every pixel, every
  gene, the probe group), and differently by position and channel, so that a tensor
  that is transposed, shifted or scaled shows;
* a row's output has the same bits whatever batch it is in. All layers are
  convolutions, which the runtime computes image by image; a matrix product over
  the whole batch may choose another kernel for another number of rows.

--check proves the last two on the files made, the second on a sample of the values.
"""

import argparse
import functools
import hashlib
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PRODUCER = "histogate stand-in"  # what tells a stand-in from a real checkpoint
TILE = 224
PATCH = 32  # a patch is 32x32 pixels
CHANNELS = 8  # features of a patch

GENES = (19374, 6002)  # of bulk RNA, of a prediction
GENE_ROWS = 6  # bulk RNA is laid out as 6 rows of 3,229, a prime number
STATE = 16  # what tile, bulk RNA and probe group become together

SEG_TILE = 512
SEG_BLOCK = 16  # pixels, the side of a pixel's surroundings
SEG_ROWS = 8  # the batch that the segmentation's output is padded to


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


def patch_features(name):
    """Nodes and constants from tile (B, 3, 224, 224) to features (B, 8, 7, 7)."""
    constants = {
        "patch_weight": weights(name + "/patch", (CHANNELS, 3, PATCH, PATCH), 0.05),
        "patch_bias": weights(name + "/patch_bias", (CHANNELS,), 0.5),
    }
    nodes = [
        helper.make_node("Conv", ["tile", "patch_weight", "patch_bias"], ["patches"], strides=[PATCH, PATCH]),
        helper.make_node("LeakyRelu", ["patches"], ["features"], alpha=0.25),
    ]
    return nodes, constants


def embedding_model(name, width):
    """tile (B, 3, 224, 224) float32 -> embedding (B, width) float32."""
    side = TILE // PATCH
    nodes, constants = patch_features(name)
    constants |= {
        "head_weight": weights(name + "/head", (width, CHANNELS, side, side), 0.1),
        "head_bias": weights(name + "/head_bias", (width,), 0.5),
    }
    nodes += [
        helper.make_node("Conv", ["features", "head_weight", "head_bias"], ["head"]),
        helper.make_node("Flatten", ["head"], ["embedding"]),
    ]
    return finish(name, nodes, constants, {"tile": ["batch", 3, TILE, TILE]}, {"embedding": ["batch", width]})


def expression_model(name, width):
    """tile, bulk RNA and probe group -> log(1 + count) of each output gene, embedding.

    Inputs are tile (B, 3, 224, 224) float32, bulkrna (B, 19374) float32 and
    probe_groups (B, 1) int64; outputs are predictions (B, 6002) and embedding
    (B, width), float32. A product of the size genes x genes would take 465 MB: here
    each input becomes 16 numbers, their sum is the state, and both outputs are read
    from it. The last gene is predicted beyond what expm1 can give in float32, so that
    a transform that lets infinity pass shows.
    """
    side = TILE // PATCH
    genes_in, genes_out = GENES
    nodes, constants = patch_features(name)
    prediction_bias = 1 + weights(name + "/prediction_bias", (genes_out,), 0.5)
    prediction_bias[-1] = 120
    constants |= {
        "tile_weight": weights(name + "/tile", (STATE, CHANNELS, side, side), 0.03),
        "tile_bias": weights(name + "/tile_bias", (STATE,), 0.5),
        "rna_grid": np.array([0, 1, GENE_ROWS, genes_in // GENE_ROWS], np.int64),
        "rna_weight": weights(name + "/rna", (STATE, 1, GENE_ROWS, genes_in // GENE_ROWS), 0.003),
        "probe_grid": np.array([0, 1, 1, 1], np.int64),
        "probe_weight": weights(name + "/probe", (STATE, 1, 1, 1), 0.5),
        "prediction_weight": weights(name + "/prediction", (genes_out, STATE, 1, 1), 0.6),
        "prediction_bias": prediction_bias,
        "embedding_weight": weights(name + "/embedding", (width, STATE, 1, 1), 0.3),
        "embedding_bias": weights(name + "/embedding_bias", (width,), 0.5),
    }
    nodes += [
        helper.make_node("Conv", ["features", "tile_weight", "tile_bias"], ["of_tile"]),
        helper.make_node("Reshape", ["bulkrna", "rna_grid"], ["rna"]),  # a 0 keeps the batch
        helper.make_node("Conv", ["rna", "rna_weight"], ["of_rna"]),
        helper.make_node("Cast", ["probe_groups"], ["probe_number"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["probe_number", "probe_grid"], ["probe"]),
        helper.make_node("Conv", ["probe", "probe_weight"], ["of_probe"]),
        helper.make_node("Add", ["of_tile", "of_rna"], ["of_both"]),
        helper.make_node("Add", ["of_both", "of_probe"], ["sum"]),
        helper.make_node("LeakyRelu", ["sum"], ["state"], alpha=0.25),
        helper.make_node("Conv", ["state", "prediction_weight", "prediction_bias"], ["prediction_grid"]),
        helper.make_node("Relu", ["prediction_grid"], ["counts"]),  # no count is below zero
        helper.make_node("Flatten", ["counts"], ["predictions"]),
        helper.make_node("Conv", ["state", "embedding_weight", "embedding_bias"], ["embedding_grid"]),
        helper.make_node("Flatten", ["embedding_grid"], ["embedding"]),
    ]
    inputs = {"tile": ["batch", 3, TILE, TILE], "bulkrna": ["batch", genes_in], "probe_groups": ["batch", 1]}
    return finish(name, nodes, constants, inputs, {"predictions": ["batch", genes_out], "embedding": ["batch", width]})


def segmentation_model(name):
    """tile (B, 3, 512, 512) float32 in [0, 1] -> logits (max(B, 8), 1, 512, 512) float32.

    Stained tissue swallows green light and glass does not, so a pixel's logit falls
    with its own green and with the mean green of the 16 x 16 block that it lies in;
    red and blue count a little. As the real checkpoint may, this one always gives a
    full batch: rows beyond those that it was given are zeros.
    """
    pixel_weight = np.array([0.15, -12, -0.15], np.float32).reshape(1, 3, 1, 1)
    block_weight = weights(name + "/block", (1, 3, SEG_BLOCK, SEG_BLOCK), 0.002)
    block_weight[0, 1] -= np.float32(12 / SEG_BLOCK**2)
    constants = {
        "pixel_weight": pixel_weight,
        "pixel_bias": np.array([24 * 0.83], np.float32),  # zero where both greens are 0.83
        "block_weight": block_weight,
        "scales": np.array([1, 1, SEG_BLOCK, SEG_BLOCK], np.float32),
        "zero": np.array([0], np.int64),
        "zeros_before": np.array([0, 0, 0, 0], np.int64),
        "zeros_after": np.array([0, 0, 0], np.int64),
        "full": np.array([SEG_ROWS], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["tile", "pixel_weight", "pixel_bias"], ["of_pixel"]),
        helper.make_node("Conv", ["tile", "block_weight"], ["blocks"], strides=[SEG_BLOCK, SEG_BLOCK]),
        helper.make_node(
            "Resize",
            ["blocks", "", "scales"],
            ["of_block"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        helper.make_node("Add", ["of_pixel", "of_block"], ["rows"]),
        helper.make_node("Shape", ["tile"], ["given"], start=0, end=1),
        helper.make_node("Sub", ["full", "given"], ["difference"]),
        helper.make_node("Max", ["difference", "zero"], ["missing"]),
        helper.make_node("Concat", ["zeros_before", "missing", "zeros_after"], ["pads"], axis=0),
        helper.make_node("Pad", ["rows", "pads"], ["logits"]),
    ]
    shape = [3, SEG_TILE, SEG_TILE]
    return finish(name, nodes, constants, {"tile": ["batch", *shape]}, {"logits": ["padded", 1, *shape[1:]]})


def finish(name, nodes, constants, inputs, outputs):
    """The graph, with its inputs and outputs given as shape by name, as a model that says what it is."""

    def tensors(shapes):
        kinds = {"probe_groups": TensorProto.INT64}
        return [helper.make_tensor_value_info(k, kinds.get(k, TensorProto.FLOAT), v) for k, v in shapes.items()]

    initializers = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, f"stand-in for {name}", tensors(inputs), tensors(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = PRODUCER
    model.doc_string = f"A stand-in with the shapes of {name}. Not the real weights; its answers mean nothing."
    onnx.checker.check_model(model, full_check=True)
    return model


def values(rng, tensor, rows, low, high):
    """Random values for an input of a session, from low to high where they are floats."""
    shape = (rows, *tensor.shape[1:])
    if tensor.type == "tensor(int64)":
        return rng.integers(0, 4, shape)
    return rng.uniform(low, high, shape).astype(np.float32)


def check(path, most, ranges, rounds):
    """Prove that batches do not change a row and that every input changes every output.

    Args:
        path: the checkpoint.
        most: the largest batch; all sizes from 1 to it are run.
        ranges: lowest and highest value by input.
        rounds: how often a batch is run in each row of which one value of an input,
            at a random place, is moved by the least that a client can move it.

    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    inputs = {t.name: values(rng, t, most, *ranges.get(t.name, (-3, 3))) for t in session.get_inputs()}

    def run(feed, rows):
        """The bits of each output, (rows, values), without the rows that pad a batch."""
        outputs = session.run(None, feed)
        for o in outputs:
            if not np.isfinite(o).all() or np.abs(o).max() > 150:
                sys.exit(f"{path}: outputs up to {np.abs(o).max()}")
        return [o[:rows].reshape(rows, -1).view(np.uint32) for o in outputs]

    def part(first, last):
        return {k: v[first:last] for k, v in inputs.items()}

    alone = [np.concatenate(rows) for rows in zip(*(run(part(i, i + 1), 1) for i in range(most)), strict=True)]
    for size in range(2, most + 1):
        if any((got != want[:size]).any() for got, want in zip(run(part(0, size), size), alone, strict=True)):
            sys.exit(f"{path}: a batch of {size} gives other bits than its rows alone")
    base = {k: np.repeat(v[:1], most, 0) for k, v in inputs.items()}
    counts = []
    for name, value in base.items():
        moves = rounds if value[0].size > 1 else 1
        for _ in range(moves):
            moved = value.reshape(most, -1).copy()
            # A level of a sample, a probe group; a gene's range is a logarithm's: ln(2) is a count of 1 for none.
            step = {"bulkrna": np.log(2), "probe_groups": 1}.get(name, 1 / 255)
            moved[np.arange(most), rng.integers(0, moved.shape[1], most)] += moved.dtype.type(step)
            outputs = run(base | {name: moved.reshape(value.shape)}, most)
            if not all((got != want[0]).any(axis=1).all() for got, want in zip(outputs, alone, strict=True)):
                sys.exit(f"{path}: a value of {name} that changes nothing")
        counts.append(f"{moves * most} of {name}")
    print(f"{path}: same bits at batches of 1 to {most}; each value moved changes each output: {', '.join(counts)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    embeddings = {name: functools.partial(embedding_model, name, 1536) for name in ("h0-mini", "h0", "h1")}
    others = {
        "m-optimus": functools.partial(expression_model, "m-optimus", 1536),
        "tissue-seg": functools.partial(segmentation_model, "tissue-seg"),
    }
    for name, make in (embeddings | others).items():
        path = args.repository / name / "1" / "model.onnx"
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and onnx.load(path).producer_name != PRODUCER:
                sys.exit(f"{path} is not a stand-in and stays: keep real checkpoints in another repository")
            path.write_bytes(make().SerializeToString(deterministic=True))
        if name == "tissue-seg":
            check(path, most=SEG_ROWS, ranges={"tile": (0, 1)}, rounds=10)
        else:
            check(path, most=48, ranges={"bulkrna": (-1, 12)}, rounds=40)


if __name__ == "__main__":
    main()
