"""Running coroutines from ordinary code, on fsspec's event-loop thread.

That thread serves every session of the process. It is another thread than the caller's, so a caller may itself be inside a
running loop, as in a notebook. A forked child gets a thread of its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.asyn import get_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

__all__ = ["parallel", "run"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the event-loop thread and return its result.

    When the caller is interrupted (Ctrl-C), the coroutine is cancelled and gets the time to clean up before the interrupt
    goes on; a second interrupt doesn't wait.

    Raises
    ------
    RuntimeError
        Called on the event-loop thread itself, which would wait for itself.
    """
    loop: asyncio.AbstractEventLoop = get_loop()  # type: ignore[no-untyped-call]  # fsspec has no types
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []

    def finish(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            outcome.set_exception(asyncio.CancelledError())
        elif error := task.exception():
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    def start() -> None:
        task = loop.create_task(work)
        tasks.append(task)
        task.add_done_callback(finish)

    if _running_loop() is loop:
        work.close()
        raise RuntimeError("this blocks, so it can't be called on fsspec's event-loop thread: call it from another thread")
    loop.call_soon_threadsafe(start)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - `start` may not have run yet
            wait([outcome])
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def parallel(calls: Iterable[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """Await all calls, at most `limit` at once, and return their results in order.

    The first failure cancels the others and is raised itself, not as a group.
    """
    gate = asyncio.Semaphore(limit)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
