"""One process for each rank, started here; whatever happens, none outlives the command."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NoReturn, TypeVar

import torch.distributed as dist

from hardware_models.errors import MachineError, TwinError
from runtime_npu.parallel.communicator import PeerLostError, exchanging
from runtime_npu.parallel.rendezvous import Meeting, host_store, met

Job = TypeVar("Job")
Result = TypeVar("Result")
Task = Callable[[Job, int], Result]
"""What a rank does with the job and its number, torch.distributed being initialised."""

CAUSE_S = 5.0
"""How long to wait for the rank that failed by itself, once another has lost its peer."""
TERMINATED_S = 2.0
"""How long a rank may take to end when asked to; then it is killed."""
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""Signals that no fault of a rank's own raises."""


class RankError(TwinError):
    """A rank failed by a fault of ours."""


@dataclass(frozen=True)
class _Failure:
    """Why a rank ended: an error that the user can act on, or a traceback."""

    error: TwinError | None
    text: str
    is_consequence: bool
    """Whether it only lost a peer, so that another rank's failure is the cause."""


def run_ranks(
    task: Task[Job, Result], job: Job, ranks: int, *, on_npus: bool = False
) -> list[Result]:
    """``task(job, rank)`` in a process for each rank; their results in rank order.

    ``on_npus``: rank i takes NPU i of this machine.

    ``task``, ``job`` and the results travel pickled.  When a rank fails, the others are ended
    and its error is raised here; so they are on any exception here (Ctrl-C included).

    Raises:
        TwinError: the first failed rank's own, if it derives from it.
        MachineError: its process was ended from outside.
        RankError: it failed otherwise.
    """
    store = host_store()
    context = get_context("spawn")
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        with _interrupts_held():
            for rank in range(ranks):
                ours, theirs = context.Pipe(duplex=False)
                meeting = Meeting(rank, ranks, store.port, rank if on_npus else None)
                process = context.Process(
                    target=_rank_main, args=(task, job, meeting, theirs), name=f"rank {rank}"
                )
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
        return _results(pipes, processes)
    finally:
        _end(processes)


def run_as_rank(task: Task[Job, Result], job: Job | None, meeting: Meeting) -> list[Result]:
    """Be one of the ranks in this process: rank 0 brings the job and gets all results.

    The other ranks pass no job and get an empty list.

    Raises:
        TwinError: what the task raises.
        PeerLostError: another rank has ended.
    """
    with met(meeting):
        shared: list[Job | None] = [job]
        results: list[Result | None] | None = None if meeting.rank else [None] * meeting.ranks
        with exchanging("handing out the job"):
            dist.broadcast_object_list(shared, src=0)
        told = shared[0]
        assert told is not None
        result = task(told, meeting.rank)
        with exchanging("collecting results"):
            dist.gather_object(result, results, dst=0)
        return [found for found in results or [] if found is not None]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started inside never see Ctrl-C: the command that started them ends them."""
    # multiprocessing starts its tracker with the first process and unblocks Ctrl-C behind it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _results(pipes: Sequence[Connection], processes: Sequence[BaseProcess]) -> list[Result]:
    """What the ranks send, in rank order; raises what the first failed rank says."""
    results: dict[int, Result] = {}
    lost: dict[int, _Failure] = {}
    deadline: float | None = None
    while len(results) < len(pipes):
        open_ranks = {
            pipe: rank for rank, pipe in enumerate(pipes) if rank not in {*results, *lost}
        }
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = connection.wait(list(open_ranks), timeout) if open_ranks else []
        if not ready:
            rank = min(lost)
            raise _raised(rank, lost[rank])
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_ranks[pipe]
            message: _Failure | tuple[Result] = _received(pipe, processes[rank])
            if not isinstance(message, _Failure):
                results[rank] = message[0]
            elif message.is_consequence:
                lost[rank] = message
                deadline = deadline or time.monotonic() + CAUSE_S
            else:
                raise _raised(rank, message)
    return [results[rank] for rank in range(len(pipes))]


def _received(pipe: Connection, process: BaseProcess) -> _Failure | tuple[Result]:
    """A rank's message; a pipe that closed without one means that the process was ended."""
    try:
        message: _Failure | tuple[Result] = pipe.recv()
    except EOFError:
        process.join(TERMINATED_S)
        code = process.exitcode
        if code is not None and code < 0:
            return _ended(process.name, signal.Signals(-code))
        return _Failure(None, f"ended with exit code {code} and no result", False)
    return message


def _ended(rank: str, by: signal.Signals) -> _Failure:
    text = f"ended by signal {by.name}"
    if by not in FROM_OUTSIDE:
        return _Failure(None, text, False)
    cause = MachineError(f"{rank}: {text}, from outside: for want of memory, or by hand")
    return _Failure(cause, text, False)


def _raised(rank: int, failure: _Failure) -> TwinError:
    if failure.error is not None:
        return failure.error
    return RankError(f"rank {rank}: {failure.text}")


def _end(processes: Sequence[BaseProcess]) -> None:
    """End what still runs: first asked, then killed."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + TERMINATED_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()
        process.close()


def _rank_main(task: Task[Job, Result], job: Job, meeting: Meeting, pipe: Connection) -> None:
    """The process of a rank: meet the others, do the task, hand over the result."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with met(meeting):
            # Failures must not reach the clean-up, which could wait for ranks that wait for this.
            try:
                pipe.send((task(job, meeting.rank),))
            except Exception as error:
                _give_up(pipe, error)
    except Exception as error:
        _give_up(pipe, error)


def _give_up(pipe: Connection, error: Exception) -> NoReturn:
    """Say why, and leave at once."""
    pipe.send(_failure(error))
    os._exit(1)


def _failure(error: Exception) -> _Failure:
    own = error if isinstance(error, TwinError) else None
    text = "".join(traceback.format_exception(error))
    return _Failure(own, text, isinstance(error, PeerLostError))


def _end_with_parent() -> None:
    """Leave when the command that started this rank has died, however it died."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
