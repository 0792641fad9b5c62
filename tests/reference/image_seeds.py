"""Small pictures of many kinds for the mutation fuzz, written by Pillow.

Writes to stdout, for each, a 4-byte little-endian length and the file. They
come from a crop of the tile named as the only argument, so that they hold
tissue; the same tile gives the same files.
"""

import io
import struct
import sys
from typing import Any

from PIL import Image


def files(tile: Image.Image) -> list[bytes]:
    made: list[bytes] = []

    def save(image: Image.Image, format: str, **options: Any) -> None:
        out = io.BytesIO()
        image.save(out, format, **options)
        made.append(out.getvalue())

    for box in ((60, 60, 100, 93), (0, 0, 64, 64), (100, 30, 117, 101)):
        rgb = tile.crop(box)
        alpha = rgb.copy()
        alpha.putalpha(rgb.getchannel("G"))
        for mode in ("RGB", "L", "P", "1", "LA", "RGBA"):
            image = alpha if mode == "RGBA" else rgb.convert(mode)
            save(image, "PNG")
        save(rgb, "PNG", icc_profile=b"not a profile", pnginfo=None)
        save(rgb.convert("P"), "PNG", transparency=7)
        save(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)])
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                save(rgb, "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
        save(rgb, "JPEG", quality=30, restart_marker_blocks=2)
        save(rgb.convert("L"), "JPEG", quality=85, progressive=True)
        save(rgb.convert("L"), "JPEG", quality=85)
        save(rgb.convert("CMYK"), "JPEG", quality=85)
        save(rgb, "JPEG", quality=85, keep_rgb=True)
        exif = Image.Exif()
        exif[0x112], exif[0x128], exif[0x11A] = 6, 2, 72.0
        save(rgb, "JPEG", quality=85, exif=exif, icc_profile=b"x" * 70000, comment=b"a comment")
        save(rgb, "MPO", save_all=True, append_images=[rgb.rotate(180)])
        for method in (0, 4):
            save(rgb, "WEBP", quality=80, method=method)
            save(rgb, "WEBP", lossless=True, method=method)
        save(rgb, "WEBP", quality=10, exif=exif, icc_profile=b"not a profile")
        save(alpha, "WEBP", quality=80)
        save(alpha, "WEBP", lossless=True, exact=True)
        save(alpha, "WEBP", quality=80, save_all=True, append_images=[alpha.rotate(180)])
        save(rgb.convert("P"), "WEBP", lossless=True)
    # More than the 64 KiB of a file that Pillow hands to a decoder at a time.
    for progressive in (False, True):
        save(tile, "JPEG", quality=100, subsampling=0, progressive=progressive)
    return made


if __name__ == "__main__":
    with Image.open(sys.argv[1]) as tile:
        for file in files(tile.convert("RGB")):
            sys.stdout.buffer.write(struct.pack("<I", len(file)) + file)
