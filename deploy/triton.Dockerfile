# Triton with what the histogate backend imports: the stage onnx for model.onnx, and the
# last one, pt2, with torch for .pt2 checkpoints too, of some 7 GB more.
#
# 24.12 (Triton 2.53, Ubuntu 24.04, Python 3.12) is the release nearest to the 2.51 that
# the tests run whose Python onnxruntime 1.32 still has wheels for; the image of 2.51
# itself has Python 3.10. Pinned by tag: no registry was at hand to read a digest from.
FROM nvcr.io/nvidia/tritonserver:24.12-py3 AS onnx
# The versions of the tests' Triton, without the wheel that is only needed where
# there is no such image. The interpreter is the image's own, for backends alone.
COPY deploy/triton/requirements.txt /tmp/requirements.txt
RUN grep -v '^nvidia-pytriton' /tmp/requirements.txt >/tmp/backend.txt && \
    pip install --no-cache-dir --no-deps --break-system-packages -r /tmp/backend.txt && \
    rm /tmp/requirements.txt /tmp/backend.txt
COPY deploy/triton/backends/histogate /opt/tritonserver/backends/histogate
COPY deploy/triton/serve /usr/local/bin/triton-serve
# A user that the image has (triton-server), as a number as Kubernetes wants it. His home
# may not be there or be read-only; torch would keep what it compiles in it.
ENV HOME=/tmp
USER 1000:1000
EXPOSE 8000 8001 8002
# Live, not ready: one model that does not load must not keep the others away.
HEALTHCHECK --interval=10s --timeout=4s --start-period=60s \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/live', timeout=2)"]
CMD ["triton-serve"]

FROM onnx AS pt2
USER root
COPY deploy/triton/requirements-pt2.txt /tmp/requirements.txt
RUN grep -v '^pillow' /tmp/requirements.txt >/tmp/backend.txt && \
    pip install --no-cache-dir --no-deps --break-system-packages -r /tmp/backend.txt && \
    rm /tmp/requirements.txt /tmp/backend.txt
USER 1000:1000
