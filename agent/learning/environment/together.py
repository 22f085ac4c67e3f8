"""Calls in threads that do not hold up the end of the process: an interrupt of the caller is not delayed by them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begun(calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
    """The results to come, in order."""
    return [_begun(call) for call in calls]


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results, in order; a single call needs no thread. Raises: the first error in order, once all have ended."""
    if len(calls) == 1:
        return [calls[0]()]
    futures = begun(calls)
    for future in futures:
        future.exception()
    return [future.result() for future in futures]


def _begun(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 (raised where the result is awaited)
            future.set_exception(exc)

    threading.Thread(target=run, name="score", daemon=True).start()
    return future
