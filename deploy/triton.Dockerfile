# Triton with what the histogate backend imports. 24.12 (Triton 2.53, Ubuntu 24.04,
# Python 3.12) is the release nearest to the 2.51 that the tests run whose Python
# onnxruntime 1.32 still has wheels for; the image of 2.51 itself has Python 3.10.
FROM nvcr.io/nvidia/tritonserver:24.12-py3

# The versions of the tests' Triton, without the wheel that is only needed where
# there is no such image. The interpreter is the image's own, for backends alone.
COPY deploy/triton/requirements.txt /tmp/requirements.txt
RUN grep -v '^nvidia-pytriton' /tmp/requirements.txt >/tmp/backend.txt && \
    pip install --no-cache-dir --no-deps --break-system-packages -r /tmp/backend.txt && \
    rm /tmp/requirements.txt /tmp/backend.txt
