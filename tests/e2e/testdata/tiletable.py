"""Holds how the backend reads and applies the table of a tile that comes as bytes.

Run by the Go tests without Triton, where the backend would never be given a table that
the gateway has not checked.
"""

import base64
import hashlib
import importlib.util
import pathlib
import sys
import types

import numpy as np

BACKEND = pathlib.Path(__file__).parents[3] / "deploy/triton/backends/histogate/model.py"


def load_backend():
    """Import model.py as Triton does, without Triton."""
    sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
    spec = importlib.util.spec_from_file_location("backend", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration(table, datatype="TYPE_UINT8", **changes):
    """A model's configuration with a table, and with parameters changed or left out (None)."""
    parameters = {
        "tile_table": base64.b64encode(table.tobytes()).decode(),
        "tile_table_dtype": str(table.dtype),
        "tile_table_sha256": hashlib.sha256(table.tobytes()).hexdigest(),
    } | changes
    return {
        "input": [{"data_type": "TYPE_FP32"}, {"data_type": datatype}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items() if value is not None},
    }


def main():
    backend = load_backend()
    random = np.random.default_rng(1)
    for dtype in (np.float32, np.float16):
        table = random.standard_normal((3, 256)).astype(dtype)
        table[0, 0] = -0.0  # a value keeps its bits
        read = backend.tile_table(configuration(table))
        # Both kinds of side, and -1 for any: by one sample and by two.
        for dims, shape in (
            ((3, 1, 1), (2, 3, 1, 1)),
            ((3, 7, 9), (5, 3, 7, 9)),
            ((3, -1, -1), (5, 3, 4, 4)),
            ((3, -1, 8), (5, 3, 7, 8)),
            ((3, 16, 16), (5, 3, 16, 16)),
        ):
            tiles = random.integers(0, 256, shape, np.uint8)
            tiles.flat[0], tiles.flat[-1] = 0, 255
            tiles.flags.writeable = False
            memory = np.full((len(tiles) + 1, *shape[1:]), 7, dtype)
            got = backend.TileLookup(read, dims).write([tiles[:1], tiles[1:]], memory[:-1])
            want = np.stack([table[channel][tiles[:, channel]] for channel in range(3)], axis=1)
            if got.dtype != dtype or got.tobytes() != want.tobytes() or (memory[-1] != 7).any():
                sys.exit(f"tiles of {shape} become other {dtype} values than the table's")
    table = random.standard_normal((3, 256)).astype(np.float32)
    if backend.tile_table(configuration(table, "TYPE_FP32")) is not None:
        sys.exit("a tile of floats has a table")
    changed = base64.b64encode((table + 1).tobytes()).decode()
    for what, config, says in (
        ("another table", configuration(table, tile_table=changed), "SHA-256"),
        ("no base64", configuration(table, tile_table="*" * 8), "Error"),
        ("no table", configuration(table, tile_table=None), "KeyError('tile_table')"),
        ("no hash", configuration(table, tile_table_sha256=None), "KeyError('tile_table_sha256')"),
        ("another type", configuration(table, tile_table_dtype="float16"), "reshape"),
        ("no type at all", configuration(table, tile_table_dtype="nothing"), "nothing"),
        ("too short", configuration(table[:2]), "reshape"),
    ):
        try:
            backend.tile_table(config)
        except ValueError as error:
            if says not in str(error) or "gateway repository build" not in str(error):
                sys.exit(f"{what}: {error}")
        else:
            sys.exit(f"{what}: it is taken")
    print("ok")


if __name__ == "__main__":
    main()
