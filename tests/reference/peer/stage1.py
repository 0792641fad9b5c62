"""Stage 1: from the bytes of a request to its tile, or to what is wrong with it."""

import io

import numpy as np
import pybase64
from PIL import Image
from pydantic_core import from_json

SIDE = 224
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
INTEGERS = ("x", "y", "width", "height", "patch_idx")
NUMBERS = ("tissue_ratio", "resolution")

# H1's, for each channel of (3, H, W); by way of float64, as a tensor library takes Python floats.
MEAN, STD = (
    np.array(values, np.float64).astype(np.float32).reshape(3, 1, 1)
    for values in ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))
)


def parse(body):
    """The JSON of a request as a dict, its fields checked; ValueError says what is wrong with it."""
    request = from_json(body, allow_inf_nan=False)
    if type(request) is not dict:
        raise ValueError("the body must be a JSON object")
    for name in ("image_data", "slide_name"):
        if type(request.get(name)) is not str:
            raise ValueError(f"{name} must be a string")
    for name in INTEGERS:
        value = request.get(name)
        if type(value) is float and value.is_integer():  # 7.0 and 1e3 are integers, "7" and true are not
            request[name] = value = int(value)
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} must be an integer of 64 bits")
    for name in NUMBERS:
        if type(request.get(name)) not in (int, float, type(None)):
            raise ValueError(f"{name} must be a number or null")
    return request


def planes(image_data):
    """A tile, an image in base64, as (3, H, W) uint8; ValueError says what is wrong with it."""
    try:
        encoded = pybase64.b64decode(image_data, validate=True)
    except ValueError:  # perhaps only because of white space, which is allowed
        encoded = pybase64.b64decode("".join(image_data.split()), validate=True)
    image = rgb(encoded)
    # Pillow writes a line's reds, then its greens, then its blues: whole lines for numpy to widen.
    return np.frombuffer(image.tobytes("raw", "RGB;L"), np.uint8).reshape(SIDE, 3, SIDE).transpose(1, 0, 2)


def rgb(encoded):
    """An encoded image as Pillow's RGB."""
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            width, height = image.size
            if (width, height) == (SIDE, SIDE):
                return image.convert("RGB")
    except Exception as error:  # of many kinds
        raise ValueError(f"image_data must be a whole image, one of {', '.join(FORMATS)}") from error
    raise ValueError(f"the tile must be {SIDE} x {SIDE} pixels, not {width} x {height}")


def normalise(samples, out):
    """Write (v/255 - mean)/std of (3, H, W) uint8, each step in float32."""
    np.copyto(out, samples)
    out /= np.float32(255)
    out -= MEAN
    out /= STD
