"""Where the work of a search runs: in processes of this machine.

The process that asks works as well, so that one worker is no process more, and two are one.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import forkserver
from typing import Any, Generic, TypeVar

from hardware_models.errors import MachineError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item], Result]

PRELOADED = "twin.search.preloaded"
"""The module that processes start with."""


def available_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare(count: int | None) -> None:
    """Start what ``count`` processes are forked from, which takes a second, beside other work."""
    if (count or available_cpus()) > 1 and _context().get_start_method() == "forkserver":
        forkserver.ensure_running()


class Workers(ABC):
    """Workers that live as long as the ``with`` block.

    Leaving the block early drops what has not ended.  ``count`` is how many items are worked
    on at once.
    """

    count: int

    def __enter__(self) -> Workers:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the workers, at once after an error."""

    @abstractmethod
    def unordered(
        self, work: Work[Item, Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """The place of an item and ``work`` of it, as each is done; begun in the items' order.

        Raises:
            MachineError: a worker was lost.
            Exception: what ``work`` raised.
        """

    def map(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Result]:
        """``work`` of every item, in the order of the items; raises as :meth:`unordered`."""
        done: dict[int, Result] = {}
        following = 0
        for place, result in self.unordered(work, items):
            done[place] = result
            while following in done:
                yield done.pop(following)
                following += 1


class Processes(Workers):
    """The process itself and ``count`` - 1 others, which start with the block."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        self._started: list[Future[None]] = [Future() for _ in range(count - 1)]
        self._starter = threading.Thread(target=self._start, daemon=True)

    def __enter__(self) -> Processes:
        if self.count > 1:
            self._pool = ProcessPoolExecutor(self.count - 1, _context(), initializer=_begin)
            self._starter.start()
        return self

    def _start(self) -> None:
        # The server answers once it has imported everything: this process has better to do.
        assert self._pool is not None
        for started in self._started:
            try:
                self._pool.submit(os.getpid).add_done_callback(partial(_tell, started))
            except RuntimeError:  # a process died: the item that is given to it will say so
                started.set_result(None)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        self._starter.join()
        if kind is not None:
            # Items under way would otherwise run to their end: seconds after a Ctrl-C.
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def unordered(
        self, work: Work[Item, Result], items: Sequence[Item]
    ) -> Iterator[tuple[int, Result]]:
        """See :meth:`Workers.unordered`."""
        if self._pool is None or len(items) < 2:
            yield from ((place, work(item)) for place, item in enumerate(items))
            return
        shared = _Shared(self._pool, work, items)
        try:
            yield from shared.results(self._started)
        except BrokenProcessPool:
            killed = "a worker process was killed from outside, for memory perhaps (workers=1?)"
            raise MachineError(f"{killed}; the same command with output=FOLDER goes on") from None
        finally:
            shared.stop()


class _Shared(Generic[Item, Result]):
    """Items that this process and others take one at a time, first come first served."""

    _numbers = itertools.count()

    def __init__(
        self, pool: ProcessPoolExecutor, work: Work[Item, Result], items: Sequence[Item]
    ) -> None:
        self._pool, self._work = pool, work
        # Pickled once, and read once by each process, however many items there are.
        self._number, self._pickled = next(self._numbers), pickle.dumps(work)
        self._left = deque(enumerate(items))
        self._taken = 0
        self._lock = threading.Lock()
        self._landed: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()

    def results(self, others: Sequence[Future[None]]) -> Iterator[tuple[int, Result]]:
        """All results as they land; this process works on what the others leave.

        The others take part once they have started.

        After an error nothing more is begun, and the first item that fails says why: the same
        for any number of processes.
        """
        for other in others:
            other.add_done_callback(lambda _: self._feed())
        errors: dict[int, Exception] = {}
        done = 0
        while (mine := self._take()) is not None or done < self._taken:
            place, future = self._landed.get() if mine is None else (mine[0], self._done(mine[1]))
            done += 1
            error = future.exception()
            if isinstance(error, Exception):
                errors[place] = error
                self.stop()
            else:
                yield place, future.result()
        if errors:
            raise errors[min(errors)]

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._left.clear()

    def _done(self, item: Item) -> Future[Result]:
        """The item worked on in this process."""
        future: Future[Result] = Future()
        try:
            future.set_result(self._work(item))
        except Exception as error:
            future.set_exception(error)
        return future

    def _take(self) -> tuple[int, Item] | None:
        with self._lock:
            if not self._left:
                return None
            self._taken += 1
            return self._left.popleft()

    def _feed(self) -> None:
        """Give an idle process its next item."""
        taken = self._take()
        if taken is None:
            return
        place, item = taken
        try:
            future = self._pool.submit(_call, self._number, self._pickled, item)
        except RuntimeError as error:  # a worker was killed, or the block was left
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda landed: self._land(place, landed))

    def _land(self, place: int, future: Future[Result]) -> None:
        if future.exception() is None:
            self._feed()
        self._landed.put((place, future))


def _tell(started: Future[None], _: Future[int]) -> None:
    started.set_result(None)


_latest: tuple[int, Any] = (-1, None)


def _call(number: int, pickled: bytes, item: Item) -> Any:
    """In a worker process: the pickled work of an item, unpickled when it is another's."""
    global _latest  # noqa: PLW0603 - one for each process
    if _latest[0] != number:
        _latest = (number, pickle.loads(pickled))
    return _latest[1](item)


def _context() -> multiprocessing.context.BaseContext:
    """Processes forked from a server that has imported and compiled all they need.

    Where there is no such server (Windows), each starts from nothing.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def _begin() -> None:
    # Ctrl-C reaches every process of the terminal; only the first one answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A first process that was killed says nothing: the others would wait for work forever.
    threading.Thread(target=_end_with_the_first, daemon=True).start()


def _end_with_the_first() -> None:
    first = multiprocessing.parent_process()
    assert first is not None, "a worker process has one"
    first.join()
    os._exit(1)
