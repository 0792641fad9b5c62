"""What Pillow makes of files: reads them from stdin, answers on stdout.

A request is a 4-byte little-endian length and that many bytes, one file. The
answer is one line: "ok WIDTH HEIGHT SHA256", where the hash is that of the RGB
bytes of Image.open(file).convert("RGB"), row-major, or "error EXCEPTION".
Ends with its input.
"""

import hashlib
import io
import struct
import sys
import warnings

from PIL import Image


def verdict(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data)) as image:
            rgb = image.convert("RGB")
    except Exception as e:  # whatever Pillow raises is a refusal
        return f"error {type(e).__name__}"
    return f"ok {rgb.width} {rgb.height} {hashlib.sha256(rgb.tobytes()).hexdigest()}"


def main() -> None:
    warnings.simplefilter("ignore")
    # A mutant of one format is never another format that Pillow guesses at.
    Image.init()
    while head := sys.stdin.buffer.read(4):
        (size,) = struct.unpack("<I", head)
        print(verdict(sys.stdin.buffer.read(size)), flush=True)


if __name__ == "__main__":
    main()
