"""Ranks in processes of their own: results, failures, Ctrl-C, and that none is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SOON_S, is_running, until
from rank_tasks import fail, gather

from hardware_models.errors import InputError, MachineError, TwinError
from runtime_npu.parallel.launch import RankError, run_ranks

COMMAND = """
import sys
sys.path.insert(0, {tests!r})
from rank_tasks import note_and_wait
from runtime_npu.parallel.launch import run_ranks
if __name__ == "__main__":
    run_ranks(note_and_wait, {folder!r}, 2)
"""


def test_results_come_in_rank_order() -> None:
    assert run_ranks(gather, 2, 2) == [[0, 10], [0, 10]]


FAILURES = {
    "input": (InputError, "checkpoint: got 'x'; allowed: finite weights"),
    "fault": (RankError, "rank 1: .*ZeroDivisionError: a fault of ours"),
    "killed": (MachineError, "rank 1: ended by signal SIGKILL, from outside"),
    "crashed": (RankError, "rank 1: ended by signal SIGSEGV"),
    "exit": (RankError, "rank 1: ended with exit code 7"),
}


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    "how",
    [
        "input",
        "killed",
        *(pytest.param(how, marks=NIGHTLY) for how in ("fault", "crashed", "exit")),
    ],
)
def test_a_failing_rank_ends_all_with_its_own_error(how: str) -> None:
    kind, text = FAILURES[how]
    with pytest.raises(TwinError, match=f"(?s)^{text}") as caught:
        run_ranks(fail, how, 3)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=NIGHTLY), signal.SIGKILL]
)
def test_no_rank_outlives_the_command(end: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(COMMAND.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
    # A terminal sends Ctrl-C to the whole foreground group: so does this test.
    command = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    ranks = [_rank_pid(tmp_path / f"{rank}.pid") for rank in (0, 1)]
    if end == signal.SIGINT:
        os.killpg(command.pid, end)
    else:
        command.send_signal(end)
    _, said = command.communicate(timeout=SOON_S)
    until(lambda: not any(is_running(pid) for pid in ranks))
    if end == signal.SIGINT:
        # One traceback: that of the command itself, none of the ranks'.
        assert said.count("KeyboardInterrupt") == 1


def _rank_pid(path: Path) -> int:
    until(path.exists, 120.0)
    return int(path.read_text())
