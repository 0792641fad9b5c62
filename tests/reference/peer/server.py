"""The two-stage server in Python that histogate is measured beside: FastAPI, uvicorn, Pillow, onnxruntime.

It serves h1's embeddings on 127.0.0.1. Its environment: PORT (8080; 0 for a free one),
MODEL (the checkpoint), BATCH_MAX_SIZE (48), BATCH_MAX_WAIT_MS (0), PREPROCESS_WORKERS (8).
When it listens it prints {"port": N}, a line of its own; SIGTERM ends it.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import os
import pathlib
import signal
import socket
import sys
import time

import orjson
import stage1
import uvicorn
from fastapi import FastAPI
from stage2 import Batcher, ForwardError, Model
from starlette.responses import Response

CHECKPOINT = pathlib.Path(__file__).parents[3] / "model_repository" / "h1" / "1" / "model.onnx"
ECHOED = ("slide_name", "x", "y", "width", "height", "tissue_ratio", "patch_idx", "resolution")


def answer(status, content):
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


def failure(status, detail):
    return answer(status, {"detail": detail, "message": detail})


def application(model, batcher, workers):
    """The routes over both stages; workers is the number of threads for stage 1."""
    # They give way to the model's thread, as the gateway does to Triton: on Linux a nice value is a thread's.
    pool = concurrent.futures.ThreadPoolExecutor(workers, "stage1", initializer=functools.partial(os.nice, 10))

    @contextlib.asynccontextmanager
    async def lifespan(_):
        batches = asyncio.create_task(batcher.run())
        yield
        batches.cancel()

    def prepare(body, named):
        """Stage 1, in a thread of the pool; a LookupError is a model that is not served."""
        tile = stage1.parse(body)
        if not named:
            if tile.get("model_name") != "h1":
                raise LookupError("model_name must be h1")
            if tile.get("mode", "prediction") != "embedding":
                raise ValueError("mode must be embedding")
        return tile, stage1.planes(tile["image_data"])

    async def infer(body, named):
        try:
            tile, planes = await asyncio.get_running_loop().run_in_executor(pool, prepare, body, named)
            embedding = await batcher.infer(planes)
        except LookupError as error:
            return failure(404, str(error))
        except ValueError as error:
            return failure(400, str(error))
        except ForwardError as error:
            return failure(503, str(error))
        return answer(200, {"output": embedding, **{name: tile.get(name) for name in ECHOED}, "embedding": None})

    async def invocations(request):
        return await infer(await request.body(), named=False)

    async def embed(request):
        return await infer(await request.body(), named=True)

    async def ping(_):
        return Response()

    async def stats(_):
        content = {
            "tiles": model.tiles,
            "batches": model.batches,
            "session_cpu_s": model.cpu_seconds,
            "process_cpu_s": time.process_time(),
        }
        return answer(200, content)

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    # Routes that take the request as it is: FastAPI's own would look for parameters in it.
    app.add_route("/invocations", invocations, methods=["POST"])
    app.add_route("/api/embed/h1", embed, methods=["POST"])
    app.add_route("/ping", ping, methods=["GET"])
    app.add_route("/stats", stats, methods=["GET"])
    return app


def main():
    def setting(name, otherwise, kind):
        return kind(os.environ.get(name, otherwise))

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # uvicorn hands the signal on when it has ended
    most = setting("BATCH_MAX_SIZE", 48, int)
    model = Model(setting("MODEL", CHECKPOINT, str), most)
    batcher = Batcher(model, most, setting("BATCH_MAX_WAIT_MS", 0, float) / 1000)
    app = application(model, batcher, setting("PREPROCESS_WORKERS", 8, int))
    listener = socket.create_server(("127.0.0.1", setting("PORT", 8080, int)))
    print(f'{{"port": {listener.getsockname()[1]}}}', flush=True)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
    # What is there by now stays: the collector need not look at it again, nor at every few new objects.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
