"""Runs one contender's adapter, in that contender's own environment: `python -m contender ACTION`.

An adapter is a module `peer` with

    SETTINGS    {variant: what is set, in words}; one entry per way of running the worker
    KINDS       of "sync" and "async": the handlers it has
    BULK        how it pushes many, in words; empty where it has no way but one by one
    SPAWNS      the variants of which one command makes all worker processes
    start, stop (optional) around everything that is pushed
    push(number), push_many(numbers)
    push_async(number)   (optional) a coroutine, where that is another way of pushing
    work(variant, processes)   becomes the worker; does not return

where `start`, `stop` and the pushes may be coroutines. The actions: `describe` prints these as JSON; `one`,
`threads` (eight at once, each one by one), `tasks` (the same with `push_async` in a hundred tasks), `bulk`
and `spaced` push `count` jobs and print the seconds that it took; `turns` reads `one` or
`bulk` and a number from its standard input, and does that, again and again; `work` becomes a worker.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import os
import random
import sys
import threading
import time
from typing import Any

import meter

WARM = 10  # pushes before the clock starts: connections, caches of scripts
THREADS = 8  # that push at the same time
TASKS = 100  # of asyncio, likewise
PATIENCE = 60.0  # seconds until a worker must have run its first job


async def _call(function: Any, *arguments: Any) -> None:
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


Spent = tuple[float, float]  # seconds, and seconds of this process's processor time


def _clocks() -> Spent:
    return time.perf_counter(), time.process_time()


def _since(began: Spent) -> Spent:
    return time.perf_counter() - began[0], time.process_time() - began[1]


async def _push_each(peer: Any, numbers: range) -> None:
    push = peer.push
    if inspect.iscoroutinefunction(push):
        for number in numbers:
            await push(number)
    else:
        for number in numbers:
            push(number)


async def _one(peer: Any, count: int) -> Spent:
    numbers = range(meter.FIRST, meter.FIRST + count)
    await _push_each(peer, numbers[:WARM])
    began = _clocks()
    await _push_each(peer, numbers[WARM:])
    return _since(began)


async def _turns(peer: Any) -> None:
    """Say that everything is ready; then push, and say how long it took, as often as asked."""
    if hasattr(peer, "start"):
        await _call(peer.start)
    try:
        await _push_each(peer, range(meter.FIRST, meter.FIRST + 5 * WARM))
        print("ready", flush=True)
        for line in sys.stdin:
            action, count = line.split()
            numbers = range(meter.FIRST, meter.FIRST + int(count))
            began = _clocks()
            if action == "bulk":
                await _in_bulk(peer, numbers, 1000)
            else:
                await _push_each(peer, numbers)
            seconds, processor = _since(began)
            print(json.dumps({"seconds": seconds, "processor": processor}), flush=True)
    finally:
        if hasattr(peer, "stop"):
            await _call(peer.stop)


async def _threads(peer: Any, count: int) -> Spent:
    """Push one by one in eight threads at once (where pushes are coroutines: in eight tasks)."""
    numbers = range(meter.FIRST, meter.FIRST + count)
    shares = [numbers[WARM + place :: THREADS] for place in range(THREADS)]
    for number in numbers[:WARM]:
        await _call(peer.push, number)
    if inspect.iscoroutinefunction(peer.push):

        async def task(share: range) -> None:
            for number in share:
                await peer.push(number)

        began = _clocks()
        await asyncio.gather(*map(task, shares))
        return _since(began)
    failed: list[BaseException] = []

    def run(share: range) -> None:
        try:
            for number in share:
                peer.push(number)
        except BaseException as error:  # noqa: BLE001 - raised below: a push that failed is no push
            failed.append(error)

    threads = [threading.Thread(target=run, args=(share,), daemon=True) for share in shares]
    began = _clocks()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return _since(began)


async def _tasks(peer: Any, count: int) -> Spent:
    """Push one by one in a hundred asyncio tasks at once."""
    numbers = range(meter.FIRST, meter.FIRST + count)

    async def task(share: range) -> None:
        for number in share:
            await peer.push_async(number)

    await task(numbers[:WARM])
    began = _clocks()
    await asyncio.gather(*(task(numbers[WARM + place :: TASKS]) for place in range(TASKS)))
    return _since(began)


def _chunk(count: int) -> int:
    return min(1000, max(count // 5, 1))


async def _bulk(peer: Any, count: int) -> Spent:
    chunk = _chunk(count)
    numbers = range(meter.FIRST, meter.FIRST + count)
    await _call(peer.push_many, numbers[:chunk])
    began = _clocks()
    await _in_bulk(peer, numbers[chunk:], chunk)
    return _since(began)


async def _in_bulk(peer: Any, numbers: range, chunk: int) -> None:
    step = getattr(peer, "AT_ONCE", chunk)  # who cuts a long list by itself is given one
    for start in range(0, len(numbers), step):
        await _call(peer.push_many, numbers[start : start + step])


async def _spaced(peer: Any, count: int) -> Spent:
    """Push with pauses of 5 to 20 ms; the moment before each push goes into the sheet."""
    started, pushed = meter.sheet().started, meter.sheet().pushed
    is_async = inspect.iscoroutinefunction(peer.push)
    pauses = random.Random(7)
    deadline = time.monotonic() + PATIENCE
    began = _clocks()
    for place in range(count):
        pushed[place] = meter.now()
        if is_async:
            await peer.push(meter.FIRST + place)
        else:
            peer.push(meter.FIRST + place)
        while place == 0 and not started[0]:  # until the worker is there
            if time.monotonic() > deadline:
                raise SystemExit(f"no worker ran the first job within {PATIENCE:.0f} s")
            await asyncio.sleep(0.005)
        pause = pauses.uniform(0.005, 0.020)
        if is_async:
            await asyncio.sleep(pause)
        else:
            time.sleep(pause)
    return _since(began)


async def _produce(peer: Any, action: str, count: int) -> dict[str, float]:
    if hasattr(peer, "start"):
        await _call(peer.start)
    try:
        pushes = {"one": _one, "threads": _threads, "tasks": _tasks, "bulk": _bulk, "spaced": _spaced}
        untimed = {"one": WARM, "threads": WARM, "tasks": WARM, "bulk": _chunk(count), "spaced": 0}
        timed = count - untimed[action]
        seconds, processor = await pushes[action](peer, count)
        return {"count": timed, "seconds": seconds, "processor": processor}
    finally:
        if hasattr(peer, "stop"):
            await _call(peer.stop)


def main() -> None:
    import peer

    action = sys.argv[1]
    if action == "describe":
        text = {
            "settings": peer.SETTINGS,
            "kinds": peer.KINDS,
            "bulk": peer.BULK,
            "spawns": sorted(peer.SPAWNS),
            "tasks": hasattr(peer, "push_async"),
            "version": importlib.metadata.version(peer.PACKAGE),
        }
        print(json.dumps(text))
    elif action == "work":
        peer.work(os.environ["BENCH_VARIANT"], int(os.environ["BENCH_PROCESSES"]))
    elif action == "turns":
        getattr(peer, "run_loop", asyncio.run)(_turns(peer))
    else:
        run = getattr(peer, "run_loop", asyncio.run)
        print(json.dumps(run(_produce(peer, action, int(sys.argv[2])))))


if __name__ == "__main__":
    main()
