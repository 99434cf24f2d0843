"""Runs with device=npu on the real wheel: the same loop, schedule and model; kernels do nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime_npu.machine import software
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.standins.build import RUNTIME
from runtime_npu.standins.process import DEVICES, child_command, child_environment
from runtime_npu.weights import Contents
from twin.deployment import Afd
from twin.schedule import CoreLimit, Schedule, Stage
from twin.schedule_io import save_schedule
from twin.search.transport import with_transport

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "lower")]
import small  # noqa: E402

TWO = replace(small.with_role(small.CAPTURED, dies=2, ep=2), super_kernel=())
TWO = replace(TWO, workload=replace(TWO.workload, global_batch=4))
TWO_GE = replace(TWO, deployment=replace(TWO.deployment, graph_mode="ge_graph"))
EAGER = replace(
    TWO,
    deployment=replace(TWO.deployment, graph_mode="eager"),
    stages=(Stage(name="all", streams={"main": CoreLimit()}),),
    prefetch=(),
)
PAIR = small.afd("npugraph_ex", ratio=1)
PAIR = replace(
    PAIR,
    workload=replace(PAIR.workload, global_batch=4),
    deployment=replace(
        PAIR.deployment,
        roles={
            "attention": replace(small.ROLE, dies=2, ep=1),
            "ffn": replace(PAIR.deployment.roles["ffn"], dies=2, ep=2),
        },
    ),
)
DIRECT = with_transport(replace(PAIR, prefetch=()), "direct")
DIRECT = replace(
    DIRECT,
    deployment=replace(DIRECT.deployment, afd=Afd(transport="direct", micro_batches=2)),
)
PROMPTS = "prompt_ids=[[1,2,3],[4,5],[6,7,8,9],[1]]"


def machine(folder: Path) -> Path:
    """The file system of a machine with a driver."""
    info = folder / software.DRIVER_INFO
    info.parent.mkdir(parents=True)
    info.write_text("Version=25.2.0\n")
    (folder / "dev").mkdir()
    (folder / "dev" / "davinci0").touch()
    cann = folder / "cann" / "x86_64-linux"
    cann.mkdir(parents=True)
    (cann / "ascend_toolkit_install.info").write_text("version=9.0.0\n")
    return folder


class Runs:
    """Runs of one schedule, one after the other, in a process a rank."""

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        self.folder, self._ranks = folder, schedule.deployment.total_dies
        checkpoint = folder / "checkpoint"
        contents = Contents(mtp=True, int8=schedule.deployment.quantisation == "w8a8")
        make_checkpoint(checkpoint, small.SMALL, 0, "bfloat16", contents)
        self._file = folder / "schedule.yaml"
        save_schedule(replace(schedule, model=str(checkpoint / "config.json")), self._file)
        self.cache = folder / "cache"
        self._root = machine(folder / "machine")

    def __call__(self, *runs: Sequence[str]) -> list[str]:
        """What each rank said on stderr; ``runs`` are the words that come besides."""
        words = [
            [first, f"schedule={self._file}", f"compile_cache={self.cache}", PROMPTS, *rest]
            for first, *rest in runs
        ]
        asked = {
            "runs": words,
            "root": str(self._root),
            "cache": str(self.cache),
            "output": str(self.folder),
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for rank in range(self._ranks):
            environment = {
                DEVICES: str(self._ranks),
                "ASCEND_TOOLKIT_HOME": str(self._root / "cann"),
                "HCCL_OP_EXPANSION_MODE": "AIV",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._ranks),
                "LOCAL_WORLD_SIZE": str(self._ranks),
            }
            full = child_environment()
            paths = os.pathsep.join((str(HERE), full["PYTHONPATH"]))
            processes.append(
                subprocess.Popen(
                    child_command("child_run", [json.dumps(asked)]),
                    env={**full, **environment, "PYTHONPATH": paths},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            said = [process.communicate(timeout=500)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, lines in zip(processes, said, strict=True):
            assert process.returncode == 0, lines
        return said

    def result(self, number: int, name: str = "result.json") -> dict[str, Any]:
        """What run ``number`` wrote."""
        path = self.folder / str(number) / "rank-0" / name
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded


def by_run(said: str) -> list[list[str]]:
    """The words on the compile cache, run by run."""
    runs = said.split("run ")[1:]
    return [[line for line in run.splitlines() if "compile cache" in line] for run in runs]


@pytest.mark.usefixtures("standins")
def test_a_captured_schedule_runs_as_planned_on_every_rank(tmp_path: Path) -> None:
    runs = Runs(tmp_path, TWO)
    flipped = ["flip", "max_new_tokens=2"]
    said = runs(["", "max_new_tokens=4", "warmup_steps=1"], ["", "max_new_tokens=2"], flipped)
    for rank, lines in enumerate(said):
        first, again, after_a_flip = by_run(lines)
        assert (first, again) == ([], [])
        (word,) = after_a_flip
        assert f"main main of rank {rank}: pass.json is corrupted; compiling anew" in word
    for number in range(3):
        found = runs.result(number)
        assert found["differences"] == []
        assert found["ranks"] == 2
        ops = {op["name"]: op for op in found["ops"]}
        dispatch = ops["layer.0.moe.dispatch"]
        assert (dispatch["stream"], dispatch["aic"], dispatch["aiv"]) == ("moe", 8, 16)
        assert ops["mtp.0.sample"]["stream"] == "main"
    times = runs.result(0, "timing.json")
    assert {"ttft_ms", "tpot_ms", "step_ms", "forward_ms", "forward_tpot_ms"} <= times.keys()
    kept = {path.relative_to(runs.cache).parts[0] for path in runs.cache.rglob("manifest.json")}
    assert kept == {"main", "mtp"}
    assert len(list(runs.cache.rglob("manifest.json"))) == 4


def test_ranks_that_the_command_starts_take_an_npu_each(standins: Path) -> None:
    # The ranks are processes of Python's own making, which the stand-ins reach by the linker.
    libraries = sorted(standins.glob("*.so"), key=lambda path: path.name != RUNTIME)
    environment = {
        **child_environment({DEVICES: "2"}),
        "LD_PRELOAD": ":".join(map(str, libraries)),
    }
    command = [sys.executable, str(HERE / "child_spawn.py")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert last == str([("job", rank, rank, "cpu:gloo,npu:hccl") for rank in (0, 1)])


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
def test_what_ge_keeps_is_sealed_with_the_code(tmp_path: Path) -> None:
    runs = Runs(tmp_path, TWO_GE)
    said = runs(["", "max_new_tokens=2"], ["", "max_new_tokens=2"])
    assert by_run(said[0]) == [[], []]
    assert runs.result(1)["differences"] == []
    manifests = list(runs.cache.rglob("manifest.json"))
    assert len(manifests) == 4
    for manifest in manifests:
        assert set(json.loads(manifest.read_text())["files"]) == {"pass.json", "graph.om"}


@pytest.mark.nightly
@pytest.mark.usefixtures("standins")
@pytest.mark.parametrize("schedule", [EAGER, PAIR, DIRECT], ids=["eager", "afd", "direct"])
def test_other_modes_and_roles_run_as_planned_too(schedule: Schedule, tmp_path: Path) -> None:
    runs = Runs(tmp_path, schedule)
    said = runs(["", "max_new_tokens=4", "warmup_steps=1"])
    assert by_run(said[0]) == [[]]
    found = runs.result(0)
    assert found["differences"] == []
    assert found["ranks"] == schedule.deployment.total_dies
    assert found["ops"]
