"""The reference for transforms of rows: numpy.

    transforms.py PIPELINE COLUMNS [--float32]

PIPELINE is a JSON list of steps, each an object with a ``name`` and what belongs to
it. Reads rows of COLUMNS little-endian float32 values from standard input and writes
the rows they become, in the same form.

Each step computes in float64 and is rounded once, to float32; with --float32 it
computes in float32 throughout, as numpy does by itself.
"""

import json
import math
import sys

import numpy as np

NOT_MEASURED = -1


def log1p(rows, step):
    return np.where(rows == NOT_MEASURED, rows, np.log1p(np.where(rows == NOT_MEASURED, 0, rows)))


def expm1(rows, step):
    return np.expm1(rows)


def tpm(rows, step):
    measured = np.where(rows == NOT_MEASURED, 0, rows)
    if rows.dtype == np.float64:  # the sum without an error of summation
        total = np.array([[math.fsum(row)] for row in measured])
    else:
        total = measured.sum(axis=1, keepdims=True)
    scaled = measured * rows.dtype.type(step.get("factor", 1e6)) / np.where(total == 0, 1, total)
    return np.where(rows == NOT_MEASURED, rows, scaled)


def zscore(rows, step):
    mean, std = (np.array(step[k], rows.dtype) for k in ("mean", "std"))
    return (rows - mean) / np.maximum(std, 1e-8)


def subset_columns(rows, step):
    return rows[:, step["indices"]]


def nonfinite_to_zero(rows, step):
    return np.nan_to_num(rows, nan=0, posinf=0, neginf=0)


def round(rows, step):
    return np.round(rows)


def mask(rows, step):
    """float32 sigmoid > 0.5. In float32 with numpy's own exp; else with one that rounds correctly."""
    exp = np.exp(-rows).astype(np.float32)
    return np.float32(1) / (np.float32(1) + exp) > np.float32(0.5)


STEPS = {f.__name__: f for f in (log1p, expm1, tpm, zscore, subset_columns, nonfinite_to_zero, round, mask)}


def run(pipeline, rows, work=np.float64):
    """Rows of float32 after each step of a pipeline, computed in the type ``work``."""
    with np.errstate(all="ignore"):
        for step in pipeline:
            rows = STEPS[step["name"]](rows.astype(work), step).astype(np.float32)
    return rows


def main():
    pipeline, columns, *flags = sys.argv[1:]
    work = np.float32 if "--float32" in flags else np.float64
    rows = np.frombuffer(sys.stdin.buffer.read(), "<f4").reshape(-1, int(columns))
    rows = run(json.loads(pipeline), rows, work)
    sys.stdout.buffer.write(rows.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
