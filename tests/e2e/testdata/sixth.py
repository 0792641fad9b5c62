"""Makes the checkpoint of the model in the folder sixth.

    sixth.py MODEL.onnx

It needs the module standins of tests/reference on its path.
"""

import pathlib
import sys

import numpy as np
from onnx import helper
from standins import finish, weights

STATE = 4  # what the inputs become together
PATCH = 32  # pixels


def main():
    constants = {
        "ratio_grid": [0, 1, 1, 7],  # a 0 keeps the batch
        "ratio_weight": weights("sixth/ratio", (STATE, 1, 1, 7), 0.5),
        "stain_grid": [0, 1, 2, 3],
        "stain_weight": weights("sixth/stain", (STATE, 1, 2, 3), 0.5),
        "patch_weight": weights("sixth/patch", (STATE, 3, PATCH, PATCH), 0.05),
        "tile_weight": weights("sixth/tile", (STATE, STATE, 96 // PATCH, 160 // PATCH), 0.2),
        "vector_weight": weights("sixth/vector", (384, STATE, 1, 1), 0.5),
        "scores_weight": weights("sixth/scores", (5, STATE, 1, 1), 0.5),
    }
    constants = {k: np.asarray(v) for k, v in constants.items()}
    nodes = [
        helper.make_node("Reshape", ["log_ratios", "ratio_grid"], ["ratios"]),
        helper.make_node("Conv", ["ratios", "ratio_weight"], ["of_ratios"]),
        helper.make_node("Reshape", ["stain", "stain_grid"], ["stains"]),
        helper.make_node("Conv", ["stains", "stain_weight"], ["of_stain"]),
        helper.make_node("Conv", ["picture", "patch_weight"], ["patches"], strides=[PATCH, PATCH]),
        helper.make_node("LeakyRelu", ["patches"], ["features"], alpha=0.25),
        helper.make_node("Conv", ["features", "tile_weight"], ["of_tile"]),
        helper.make_node("Sum", ["of_ratios", "of_stain", "of_tile"], ["state"]),
        helper.make_node("Conv", ["state", "vector_weight"], ["vector_grid"]),
        helper.make_node("Flatten", ["vector_grid"], ["vector"]),
        helper.make_node("Conv", ["state", "scores_weight"], ["scores_grid"]),
        helper.make_node("Flatten", ["scores_grid"], ["scores"]),
    ]
    inputs = {"log_ratios": ["batch", 7], "stain": ["batch", 2, 3], "picture": ["batch", 3, 96, 160]}
    outputs = {"vector": ["batch", 384], "scores": ["batch", 5]}
    model = finish("sixth", nodes, constants, inputs, outputs)
    pathlib.Path(sys.argv[1]).write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
