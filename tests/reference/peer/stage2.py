"""Stage 2: tiles that passed stage 1 become embeddings, in batches with those of other requests."""

import asyncio
import collections
import concurrent.futures
import logging
import time

import numpy as np
import onnxruntime
import stage1

log = logging.getLogger("uvicorn.error")


class ForwardError(RuntimeError):
    """The forward pass failed, for every request of the batch."""


class Model:
    """A checkpoint that makes an embedding of a tile; for one thread at a time."""

    def __init__(self, path, most):
        """Load a checkpoint, for batches of up to most rows."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._input, self._output = self._session.get_inputs()[0].name, self._session.get_outputs()[0].name
        self._batch = np.empty((most, 3, stage1.SIDE, stage1.SIDE), np.float32)
        self.tiles = self.batches = 0
        self.cpu_seconds = 0.0  # of session.run alone

    def forward(self, tiles):
        """Tiles of (3, H, W) uint8 -> embeddings, (rows, width); ForwardError where one is not finite."""
        batch = self._batch[: len(tiles)]
        for row, tile in zip(batch, tiles, strict=True):
            stage1.normalise(tile, row)
        began = time.thread_time()
        (embeddings,) = self._session.run([self._output], {self._input: batch})
        self.cpu_seconds += time.thread_time() - began
        self.tiles += len(tiles)
        self.batches += 1
        if not np.isfinite(embeddings).all():
            raise ForwardError("an embedding is not finite")
        return embeddings


class Batcher:
    """Collects what waits into batches: of most rows, or fewer once the oldest has waited long enough."""

    def __init__(self, model, most, wait):
        """Send to a model; most is in rows, wait in seconds."""
        self._model, self._most, self._wait = model, most, wait
        self._waiting = collections.deque()  # of (tile, future, time of arrival)
        self._arrival = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "model")

    async def infer(self, tile):
        """The embedding of a tile; ForwardError where its batch failed."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((tile, future, loop.time()))
        self._arrival.set()
        return await future

    async def run(self):
        """Send one batch after the other, for ever. Meanwhile the next one gathers."""
        loop = asyncio.get_running_loop()
        while True:
            await self._fill(loop)
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            tiles, futures, _ = zip(*batch, strict=True)
            try:
                results = list(await loop.run_in_executor(self._thread, self._model.forward, tiles))
            except Exception:
                log.exception("a batch of %d failed", len(batch))
                results = [ForwardError("this tile's batch failed; send it again")] * len(batch)
            for future, result in zip(futures, results, strict=True):
                if future.done():  # the caller has gone
                    continue
                if isinstance(result, ForwardError):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _fill(self, loop):
        """Wait until there is something to send."""
        while len(self._waiting) < self._most:
            left = None
            if self._waiting:
                left = self._waiting[0][2] + self._wait - loop.time()
                if left <= 0:
                    return
            self._arrival.clear()
            try:
                async with asyncio.timeout(left):
                    await self._arrival.wait()
            except TimeoutError:
                return
