"""Jobs of several ranks, on processes that outlive a job: starting them is what takes time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch

from runtime_npu.parallel.rendezvous import Meeting, host_store, met

MOST_RANKS = 5
Job = TypeVar("Job")
Report = TypeVar("Report")


class RankPool:
    """Calls ``task(job, rank)`` for each rank of a job, all at once; reports in rank order."""

    def __init__(self, processes: ProcessPoolExecutor) -> None:
        self._processes = processes

    def __call__(self, task: Callable[[Job, int], Report], job: Job, ranks: int) -> list[Report]:
        store = host_store()
        meetings = [Meeting(rank, ranks, store.port) for rank in range(ranks)]
        waiting = [self._processes.submit(_one_rank, task, job, meeting) for meeting in meetings]
        return [future.result() for future in waiting]


def _one_rank(task: Callable[[Job, int], Report], job: Job, meeting: Meeting) -> Report:
    torch.set_num_threads(1)
    if meeting.ranks == 1:
        return task(job, meeting.rank)
    with met(meeting):
        return task(job, meeting.rank)
