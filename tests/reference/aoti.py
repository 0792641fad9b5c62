"""Makes tiny .pt2 checkpoints, and answers for them with torch itself.

    aoti.py make FOLDER   packages for h1, m-optimus and tissue-seg
    aoti.py answer        what torch gives for the tiles on standard input, each alone

The packages are compiled by AOTInductor for this machine's processor, which takes a
C++ compiler, and described by a model_metadata.json. The answers come from the same
modules run eagerly, on tiles that Pillow decoded and numpy normalised: nothing of
the compiled package, of the service or of Triton has a part in them.

On standard input is a JSON list of {"model", "image_data" (base64), "bulk_rna" (a list
or null)}; on standard output a list of {"inputs", "raw", "outputs"}, in the same
order, each a list of base64 of little-endian elements: the tensors that the model is
given, what it gives, and that after the model's output transforms. All are in the
order in which the model takes and gives them.

The models know nothing of tissue; they have the number and kinds of the real
models' tensors, and every input changes every output.
"""

import argparse
import base64
import io
import json
import pathlib
import sys
import zipfile

import numpy as np
import torch
from PIL import Image

GENES_IN, GENES_OUT, WIDTH = 64, 40, 16  # of m-optimus; see tests/pt2/testdata
PUBLISHED = (np.float32([0.707223, 0.578729, 0.703617]), np.float32([0.211883, 0.230117, 0.177517]))
PLAIN = (np.float32([0, 0, 0]), np.float32([1, 1, 1]))


class Embedder(torch.nn.Module):
    """tile (B, 3, 224, 224) float32 -> embedding (B, 1536) float32."""

    def __init__(self, width=1536):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 8, 32, stride=32)
        self.head = torch.nn.Linear(8 * 7 * 7, width)

    def forward(self, tile):
        """Embed a batch of tiles."""
        return self.head(torch.nn.functional.leaky_relu(self.patches(tile), 0.25).flatten(1))


class Expression(torch.nn.Module):
    """tile float16, bulk RNA (B, 64), probe groups (B,) int64 -> predictions (B, 40), embedding (B, 16)."""

    def __init__(self):
        super().__init__()
        self.backbone = Embedder(WIDTH)
        self.rna = torch.nn.Linear(GENES_IN, WIDTH)
        self.probes = torch.nn.Embedding(2, WIDTH)
        self.head = torch.nn.Linear(WIDTH, GENES_OUT)

    def forward(self, tile, bulkrna, probe_groups):
        """Predict expression, and embed; all within +-4, so that 1e-6 is some steps of a float32."""
        embedding = self.backbone(tile.float()) + self.rna(bulkrna) / 4 + self.probes(probe_groups) / 4
        return torch.nn.functional.softplus(self.head(embedding)), embedding


class Segmenter(torch.nn.Module):
    """tile (B, 3, 512, 512) float32 -> logits (B, 1, 512, 512): what is dark in green is tissue."""

    def __init__(self):
        super().__init__()
        self.blur = torch.nn.Conv2d(3, 1, 3, padding=1)  # on a tile of 0 to 1
        with torch.no_grad():
            self.blur.weight[:] = self.blur.weight * 0.1
            self.blur.weight[:, 1] -= 1
            self.blur.bias[:] = 6

    def forward(self, tile):
        """Score each pixel."""
        return self.blur(tile)


# By name: module, file, normalisation, and each tensor's name, shape and dtype in call order.
MODELS = {
    "h1": (
        Embedder,
        "h1_optimus_cls_token.pt2",
        PUBLISHED,
        {"x": (["batch", 3, 224, 224], "torch.float32")},
        {"cls_token": (["batch", 1536], "torch.float32")},
    ),
    "m-optimus": (
        Expression,
        "m_optimus_prediction.pt2",
        PUBLISHED,
        {
            "tile": (["batch", 3, 224, 224], "torch.float16"),
            "bulkrna_processed_counts": (["batch", GENES_IN], "torch.float32"),
            "probe_groups": (["batch"], "torch.int64"),
        },
        {"expression": (["batch", GENES_OUT], "float32"), "embedding": (["batch", WIDTH], "float32")},
    ),
    "tissue-seg": (
        Segmenter,
        "tissue_seg_aoti.pt2",
        PLAIN,
        {"image": (["batch", 3, 512, 512], "float32")},
        {"logits": (["batch", 1, 512, 512], "float32")},
    ),
}


def module(name):
    """The module, with weights that are the same in each run."""
    torch.manual_seed(sum(name.encode()))
    return MODELS[name][0]().eval()


def make(name, folder):
    """Compile one model and describe it."""
    import torch._inductor

    _, file, _, inputs, outputs = MODELS[name]
    example = tuple(
        torch.zeros([2, *shape[1:]], dtype=getattr(torch, dtype.removeprefix("torch.")))
        for shape, dtype in inputs.values()
    )
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(module(name), example, dynamic_shapes=tuple({0: batch} for _ in example))
    path = folder / file
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    metadata = {"model": MODELS[name][0].__name__}
    for kind, described in (("inputs", inputs), ("outputs", outputs)):
        metadata[kind] = {k: {"shape": s, "dtype": d, "description": k} for k, (s, d) in described.items()}
    with zipfile.ZipFile(path, "a") as package:
        package.writestr("model_metadata.json", json.dumps(metadata))


def tensors(name, request):
    """The inputs of a batch of one, by the models' published preprocessing."""
    mean, std = MODELS[name][2]
    with Image.open(io.BytesIO(base64.b64decode(request["image_data"]))) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / np.float32(255)
    tile = torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1)[None])
    if name != "m-optimus":
        return [tile]
    counts = torch.tensor([request["bulk_rna"] or [0.0] * GENES_IN], dtype=torch.float32)
    return [tile.half(), torch.where(counts == -1, counts, counts.log1p()), torch.zeros(1, dtype=torch.int64)]


def transformed(name, outputs):
    """What clients are told of what the model gave."""
    if name == "m-optimus":
        return [outputs[0].expm1().nan_to_num(0, 0, 0).round(), outputs[1]]
    if name == "tissue-seg":
        return [(outputs[0].sigmoid() > 0.5).float()]
    return outputs


def encoded(part):
    """The elements of each tensor in base64."""
    return [base64.b64encode(tensor.contiguous().numpy().tobytes()).decode() for tensor in part]


def answer(requests):
    """What torch gives for each request; see the module's docstring."""
    torch.set_num_threads(1)
    modules = {name: module(name) for name in MODELS}
    answers = []
    with torch.inference_mode():
        for request in requests:
            name = request["model"]
            inputs = tensors(name, request)
            raw = modules[name](*inputs)
            raw = [raw] if isinstance(raw, torch.Tensor) else list(raw)
            parts = {"inputs": inputs, "raw": raw, "outputs": transformed(name, raw)}
            answers.append({key: encoded(part) for key, part in parts.items()})
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("folder", type=pathlib.Path)
    commands.add_parser("answer")
    args = parser.parse_args()
    if args.command == "answer":
        json.dump(answer(json.load(sys.stdin)), sys.stdout)
        return
    for name in MODELS:
        make(name, args.folder)


if __name__ == "__main__":
    main()
