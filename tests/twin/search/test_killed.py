"""A search that was killed, for real: what it had explored is kept, and nothing is done twice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twin.cli import run
from twin.search.__main__ import main
from twin.search.config import SearchConfig
from twin.search.shards import POINTS, SHARDS

SPACE = ["scenario=afd", "search.knobs.ratio.levels=[1]", "search.knobs.micro_batches.levels=[1]"]
SPACE += ["search.knobs.router.levels=[1]", "search.knobs.w13.levels=[0.5,1]", "draws=0", "top=1"]


def shards(folder: Path) -> list[Path]:
    return sorted((folder / SHARDS).glob("*.parquet"))


def killed(folder: Path) -> None:
    """Start a search on two processes and kill it as soon as some shards have landed."""
    command = [sys.executable, "-m", "twin.search", *SPACE, "workers=2", f"output={folder}"]
    search = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while len(shards(folder)) < 3:
        assert search.poll() is None, search.communicate()[1]
        time.sleep(0.001)
    search.send_signal(signal.SIGKILL)
    search.communicate()
    assert search.returncode == -signal.SIGKILL


def test_a_killed_search_goes_on_with_nothing_lost_or_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path / "killed")
    left = {path: (path.stat().st_ino, path.read_bytes()) for path in shards(tmp_path / "killed")}
    told = {}
    for name in ("whole", "killed"):
        arguments = [*SPACE, "workers=1", f"output={tmp_path / name}"]
        assert run("search", SearchConfig, main, arguments) == 0
        told[name] = re.findall(r"(\d+) of its shards were in", capsys.readouterr().out)
    assert not told["whole"]
    assert 3 <= int(*told["killed"]) <= len(left)
    # A shard that is written again is another file.
    kept = {path: (path.stat().st_ino, path.read_bytes()) for path in left}
    assert kept == left
    whole, again = (shards(tmp_path / name) for name in ("whole", "killed"))
    assert 3 <= len(left) < len(whole)
    assert [path.name for path in again] == [path.name for path in whole]
    for one, other in zip(whole, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    for name in ("result.json", "schedule.yaml", POINTS):
        one, other = (tmp_path / folder / name for folder in ("whole", "killed"))
        assert one.read_bytes() == other.read_bytes()
