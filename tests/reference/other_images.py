"""Pillow's part in the tests of TIFF, GIF, BMP and of files that are no image.

make TILE DIR   writes the files of the manifest that need not be stored, from
                one stored picture; the test holds their SHA-256 against it
seeds DIR       writes small files of many kinds, to be mutated
verdicts        for every file on stdin (length, bytes) writes what
                Image.open(f).convert("RGB") makes of it to stdout: width,
                height and the RGB bytes, or two zeros for an error; all
                numbers are little-endian and of 32 bits
"""

import io
import struct
import sys
import warnings
from pathlib import Path

from PIL import Image


def saved(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def make(tile):
    """Yields names and bytes of the files of the manifest."""
    rgb = Image.open(tile).convert("RGB")
    grey, bilevel = rgb.convert("L"), rgb.convert("1")
    yield "tiff_rgb_None.tif", saved(rgb, "TIFF")
    for compression in ("packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "tiff_lzma"):
        yield f"tiff_rgb_{compression}.tif", saved(rgb, "TIFF", compression=compression)
    yield "tiff_big.tif", saved(rgb, "TIFF", big_tiff=True)
    for orientation in (3, 6):
        yield f"tiff_orient{orientation}.tif", saved(rgb, "TIFF", tiffinfo={274: orientation})
    for compression in ("group3", "group4"):
        yield f"tiff_1_{compression}.tif", saved(bilevel, "TIFF", compression=compression)
    for mode in ("1", "L", "LA", "P", "RGBA"):
        yield f"tiff_{mode}.tif", saved(rgb.convert(mode), "TIFF")
    for mode in ("F", "I"):
        yield f"tiff_{mode}.tif", saved(grey.convert(mode), "TIFF")
    yield "bmp_1.bmp", saved(bilevel, "BMP")
    yield "bmp_l.bmp", saved(grey, "BMP")
    yield "gif_p.gif", saved(rgb, "GIF")
    yield "gif_l.gif", saved(grey, "GIF")
    yield "other_ppm_ppm", saved(rgb, "PPM")
    yield "other_ppm_pbm", saved(bilevel, "PPM")
    yield "other_ppm_ascii.ppm", b"P3\n224 224\n255\n" + " ".join(map(str, rgb.tobytes())).encode() + b"\n"
    yield "other_dds_dds", saved(rgb, "DDS")
    yield "other_tga_rle.tga", saved(rgb, "TGA", rle=True)
    yield "other_im_im", saved(rgb, "IM")
    yield "other_msp_msp", saved(bilevel, "MSP")
    yield "other_xbm_xbm", saved(bilevel, "XBM")
    yield "other_spider_spi", saved(grey, "SPIDER")
    yield "other_qoi_qoi", saved(rgb, "QOI")
    yield "other_blp_blp", saved(rgb.convert("P"), "BLP")


def tiff(order, tags, strips, offsets_tag=273, counts_tag=279):
    """A TIFF of the given tags, {tag: (type, values)}, and strips or tiles."""
    code = {1: "B", 2: "B", 3: "H", 4: "I", 5: "I", 7: "B"}
    tags = dict(tags)
    tags[offsets_tag] = tags[counts_tag] = (4, [0] * len(strips))

    def build():
        entries, extra = b"", b""
        after = 8 + 2 + 12 * len(tags) + 4
        for tag, (kind, values) in sorted(tags.items()):
            data = struct.pack(f"{order}{len(values)}{code[kind]}", *values)
            if len(data) > 4:
                where = struct.pack(order + "I", after + len(extra))
                extra += data + b"\0" * (len(data) % 2)
            else:
                where = data.ljust(4, b"\0")
            entries += struct.pack(order + "HHI", tag, kind, len(values) // (2 if kind == 5 else 1)) + where
        return struct.pack(order + "H", len(tags)) + entries + bytes(4) + extra

    at = 8 + len(build())
    offsets = []
    for strip in strips:
        offsets.append(at)
        at += len(strip)
    tags[offsets_tag] = (4, offsets)
    tags[counts_tag] = (4, [len(s) for s in strips])
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "I", 8) + build() + b"".join(strips)


def difference(image, depth=1, order="<"):
    """Rows of an RGB image with horizontal prediction, samples of depth bytes."""
    width, height = image.size
    values = image.tobytes()
    top = 256**depth
    out = []
    for y in range(height):
        row = [v * (257 if depth == 2 else 1) for v in values[3 * width * y : 3 * width * (y + 1)]]
        row = [(v - (row[i - 3] if i >= 3 else 0)) % top for i, v in enumerate(row)]
        out.append(struct.pack(f"{order}{len(row)}{'BH'[depth - 1]}", *row))
    return out


def seeds():
    """Yields names and bytes of small files of 21x18 pixels (18x21 turned)."""
    import random
    import zlib

    pick = random.Random(7)
    width, height = 21, 18
    rgb = Image.frombytes(
        "RGB",
        (width, height),
        bytes(
            (40 * x // width * (c + 1) + 3 * y + pick.randrange(24)) % 256
            for y in range(height)
            for x in range(width)
            for c in range(3)
        ),
    )
    grey, bilevel, palette = rgb.convert("L"), rgb.convert("1"), rgb.quantize(40)
    la, rgba = rgb.convert("LA"), rgb.convert("RGBA")
    alpha = grey.point(lambda v: 255 - v)
    la.putalpha(alpha)
    rgba.putalpha(alpha)
    images = {"1": bilevel, "L": grey, "P": palette, "LA": la, "RGB": rgb, "RGBA": rgba}
    for mode, image in images.items():
        for compression in (None, "packbits", "tiff_lzw", "tiff_adobe_deflate"):
            yield f"{mode}-{compression}.tif", saved(image, "TIFF", compression=compression)
    for orientation in range(1, 9):
        yield f"turned{orientation}.tif", saved(rgb, "TIFF", tiffinfo={274: orientation}, compression="tiff_lzw")
    yield "strips.tif", saved(rgb, "TIFF", compression="tiff_lzw", strip_size=5 * 3 * width)
    yield "big.tif", saved(rgb, "TIFF", big_tiff=True, compression="tiff_adobe_deflate")
    yield "big-raw.tif", saved(palette, "TIFF", big_tiff=True)
    for compression in ("jpeg", "group3", "group4"):
        yield (
            f"refused-{compression}.tif",
            saved(bilevel if compression.startswith("group") else rgb, "TIFF", compression=compression),
        )
    for mode in ("I;16", "I", "F", "CMYK", "YCbCr", "LAB"):
        image = (grey.convert("I") if mode == "I;16" else grey if mode in "IF" else rgb).convert(mode)
        yield f"refused-{mode}.tif", saved(image, "TIFF")
    for order in "<>":
        base = {
            256: (3, [width]),
            257: (3, [height]),
            262: (3, [2]),
            277: (3, [3]),
            282: (5, [72, 1]),
            283: (5, [72, 1]),
            296: (3, [2]),
            270: (2, b"a picture\0"),
            254: (4, [0]),
        }
        lines = [rgb.tobytes()[3 * width * y :][: 3 * width] for y in range(height)]
        wide = [struct.pack(f"{order}{3 * width}H", *(v * 256 + 99 for v in line)) for line in lines]
        strip7 = lambda rows: [b"".join(rows[i : i + 7]) for i in range(0, height, 7)]
        yield f"rows7{order}.tif", tiff(order, base | {258: (3, [8] * 3), 278: (3, [7])}, strip7(lines))
        yield f"rgb16{order}.tif", tiff(order, base | {258: (3, [16] * 3), 278: (3, [7])}, strip7(wide))
        pack = {258: (3, [8] * 3), 259: (3, [8]), 278: (3, [7]), 317: (3, [2])}
        yield f"predicted{order}.tif", tiff(order, base | pack, [zlib.compress(s) for s in strip7(difference(rgb))])
        yield (
            f"predicted16{order}.tif",
            tiff(
                order, base | pack | {258: (3, [16] * 3)}, [zlib.compress(s) for s in strip7(difference(rgb, 2, order))]
            ),
        )
        yield (
            f"premultiplied{order}.tif",
            tiff(order, base | {258: (3, [8] * 4), 277: (3, [4]), 338: (3, [1])}, [rgba.tobytes()]),
        )
        yield (
            f"extra{order}.tif",
            tiff(order, base | {258: (3, [8] * 4), 277: (3, [4]), 338: (3, [0])}, [rgba.tobytes()]),
        )
        yield (
            f"deep{order}.tif",
            tiff(
                order,
                base | {258: (3, [16] * 4), 277: (3, [4]), 338: (3, [2])},
                [bytes(v for sample in rgba.tobytes() for v in (sample, sample ^ 85))],
            ),
        )
        for bits in (1, 2, 4, 8):
            row = (width * bits + 7) // 8
            data = bytes(pick.randrange(256) for _ in range(row * height))
            one = base | {258: (3, [bits]), 277: (3, [1])}
            for photometric in (0, 1):
                yield f"grey{bits}-{photometric}{order}.tif", tiff(order, one | {262: (3, [photometric])}, [data])
            colours = [pick.randrange(65536) for _ in range(3 << bits)]
            yield (
                f"palette{bits}{order}.tif",
                tiff(order, one | {259: (3, [8]), 262: (3, [3]), 320: (3, colours)}, [zlib.compress(data)]),
            )
        tiles = []
        for y in range(0, height, 16):
            for x in range(0, width, 16):
                tiles.append(rgb.crop((x, y, x + 16, y + 16)).tobytes())
        tiled = base | {258: (3, [8] * 3), 322: (3, [16]), 323: (3, [16])}
        yield f"tiles{order}.tif", tiff(order, tiled, tiles, 324, 325)
        yield (
            f"tiles-deflate{order}.tif",
            tiff(order, tiled | {259: (3, [8])}, [zlib.compress(t) for t in tiles], 324, 325),
        )
        xmp = b'<x tiff:Orientation="6"/>'
        yield f"xmp{order}.tif", tiff(order, base | {258: (3, [8] * 3), 700: (1, xmp)}, [rgb.tobytes()])
        yield (
            f"exif{order}.tif",
            tiff(
                order,
                base | {258: (3, [8] * 3), 274: (3, [6]), 700: (1, xmp), 34665: (4, [8]), 34675: (7, bytes(64))},
                [rgb.tobytes()],
            ),
        )
    for mode in ("1", "L", "P", "RGB"):
        yield f"{mode}.bmp", saved(images[mode], "BMP")
        yield f"{mode}.gif", saved(images[mode], "GIF", interlace=0)
        yield f"{mode}-interlaced.gif", saved(images[mode], "GIF", interlace=1)
    yield "rgba.bmp", saved(rgba, "BMP")
    yield "transparent.gif", saved(palette, "GIF", transparency=3)
    yield (
        "animated.gif",
        saved(
            palette,
            "GIF",
            save_all=True,
            append_images=[palette.rotate(180)],
            loop=0,
            duration=40,
            comment=b"two frames",
        ),
    )
    small = saved(palette.crop((0, 0, 13, 9)), "GIF")
    placed = bytearray(small)
    placed[6:10] = struct.pack("<HH", width, height)
    frame = small.index(b",\0\0\0\0\x0d\0\x09\0")
    placed[frame + 1 : frame + 5] = struct.pack("<HH", 5, 6)
    yield "placed.gif", bytes(placed)
    control = b"!\xf9\x04\x01\0\0\x05\0"
    yield "placed-transparent.gif", bytes(placed[:frame]) + control + bytes(placed[frame:])
    local = bytearray(saved(palette, "GIF"))
    bits = local[10] & 7
    table = local[13 : 13 + (6 << bits)]
    frame = bytes(local).index(b",\0\0\0\0" + struct.pack("<HH", width, height))
    yield (
        "local.gif",
        bytes(local[: frame + 9]) + bytes([0x80 | bits]) + bytes(v ^ 255 for v in table) + bytes(local[frame + 10 :]),
    )
    stride = lambda bits: (width * bits + 31) // 32 * 4

    def bmp(bits, header=40, compression=0, colours=b"", flip=False, masks=b"", used=0):
        height_field = -height if flip else height
        if header == 12:
            info = struct.pack("<IHHHH", 12, width, height, 1, bits)
        else:
            info = struct.pack("<IiiHHIIiiII", header, width, height_field, 1, bits, compression, 0, 0, 0, used, 0)
            info = (info + masks).ljust(header, b"\0") if header > 40 else info + masks
        body = bytes(pick.randrange(256) for _ in range(stride(bits) * height))
        if compression == 1:
            body = (bytes([width, 7]) + bytes(2)) * height + b"\0\1"
        at = 14 + len(info) + len(colours)
        return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + colours + body

    colours = bytes(pick.randrange(256) for _ in range(1024))
    for bits in (1, 4, 8):
        yield f"palette{bits}.bmp", bmp(bits, colours=colours[: 4 << bits])
        yield f"core{bits}.bmp", bmp(bits, header=12, colours=colours[: 3 << bits])
        yield f"down{bits}.bmp", bmp(bits, colours=colours[: 4 << bits], flip=True)
    yield "few.bmp", bmp(8, colours=colours[:400], used=100)
    yield "down24.bmp", bmp(24, flip=True)
    yield "down32.bmp", bmp(32, flip=True)
    yield "core24.bmp", bmp(24, header=12)
    yield "rgb555.bmp", bmp(16)
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    yield "masks24.bmp", bmp(24, compression=3, masks=masks[:12])
    yield "masks40.bmp", bmp(32, compression=3, masks=masks[:12])
    for header in (52, 56, 108, 124):
        yield f"masks{header}.bmp", bmp(32, header=header, compression=3, masks=masks)
    yield (
        "masks-abgr.bmp",
        bmp(32, header=124, compression=3, masks=struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000)),
    )
    yield "rle8.bmp", bmp(8, compression=1, colours=colours)


def verdicts():
    warnings.simplefilter("ignore")
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(4):
        data = source.read(struct.unpack("<I", head)[0])
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                # Pillow is not asked for pictures that no seed can become.
                pixels = image.convert("RGB").tobytes() if width * height <= 1 << 20 else b""
                width, height = image.size if pixels else (0, 0)
        except Exception:
            width, height, pixels = 0, 0, b""
        sink.write(struct.pack("<II", width, height) + pixels)
        sink.flush()


def main():
    command, *arguments = sys.argv[1:]
    if command == "verdicts":
        verdicts()
        return
    files = make(arguments[0]) if command == "make" else seeds()
    for name, data in files:
        (Path(arguments[-1]) / name).write_bytes(data)


main()
