"""Captured steps: which, with what settings, and a word where nothing was written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from oracle import our_model, prompts_of, spec, write

from calibration.profiles.mapping import Context
from calibration.profiles.measured import find_runs, noted_context, read_runs
from hardware_models.errors import InputError, MachineError
from runtime_npu.generate import generate
from runtime_npu.kv_cache import pool_blocks
from runtime_npu.npu.profiler import StepProfiledDecoder, noted_of
from runtime_npu.standins.process import run_on_standins
from twin.schedule_io import load_schedule, save_schedule

NEW = 7
SCHEDULE = load_schedule("recipe_colocated")


class FakeProfiler:
    """Remembers the calls, and writes what the real one would where it has a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.calls: list[str] = []
        self._folder = folder

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")

    def stop(self) -> None:
        self.calls.append("stop")
        if self._folder is not None:
            own = self._folder / "rank_3_17_20260101_ascend_pt"
            (own / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
            (own / "profiler_info_3.json").write_text("{}")
            (own / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text("Name,Type\n")


def captured(folder: Path, profiler: FakeProfiler, first: int) -> StepProfiledDecoder:
    small = spec("small", vocab_size=8, num_layers=1)
    model = our_model(write(folder, small, 0, mtp=True), small)
    prompts = prompts_of(small, (3, 2), 0)
    lengths = [len(prompt) + NEW for prompt in prompts]
    decoder = StepProfiledDecoder(model, lengths, pool_blocks(lengths, None))
    decoder.watch(profiler, first)
    generate(decoder, prompts, NEW)
    return decoder


def test_steps_from_the_first_one_on_are_captured(tmp_path: Path) -> None:
    profiler = FakeProfiler(tmp_path / "profile")
    # Six steps follow the prefill: numbers 2 to 5 are recorded, 2 as the profiler's warm-up.
    decoder = captured(tmp_path / "model", profiler, first=2)
    assert profiler.calls == ["start", "step", "step", "step"]
    noted = noted_of(SCHEDULE.deployment, 4608.4, [0.012, 0.010, 0.5, 0.5], plain=2)
    decoder.finish(tmp_path / "profile", 3, noted)
    assert profiler.calls[-1] == "stop"
    save_schedule(SCHEDULE, tmp_path / "profile" / "schedule.yaml")
    ((rank,),) = find_runs(tmp_path)
    assert rank.rank == 3
    context = noted_context(rank, Context())
    assert (context.kv_tokens, context.ep) == (4608, 128)
    # Steps under the profiler are slower: those before them count.
    (run,) = read_runs(tmp_path)
    assert run.step_us == pytest.approx(11_000)


def test_too_few_steps_are_the_users_fault(tmp_path: Path) -> None:
    decoder = captured(tmp_path / "model", FakeProfiler(), first=5)
    with pytest.raises(InputError, match="max_new_tokens: got '6 steps'"):
        decoder.finish(tmp_path, 3, {})


def test_a_profiler_that_wrote_nothing_is_noticed(tmp_path: Path) -> None:
    decoder = captured(tmp_path / "model", FakeProfiler(), first=2)
    with pytest.raises(MachineError, match="no kernel_details.csv of rank 3"):
        decoder.finish(tmp_path, 3, {})


@pytest.mark.usefixtures("standins")
def test_the_real_profiler_takes_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(here), os.environ.get("PYTHONPATH", ""))))
    done = run_on_standins("child_profiler", [str(tmp_path)])
    assert done.returncode == 0, done.stderr
    *before, last = done.stdout.splitlines()
    assert json.loads(last) == {
        "level": "Level1",
        "metrics": "ACL_AICORE_PIPE_UTILIZATION",
        "export": ["text"],
        "actions": ["WARMUP", "RECORD", "RECORD"],
        "activities": ["CPU", "NPU"],
    }
    # The profiler corrects wrong settings with a word instead of raising.
    assert not [line for line in (*before, *done.stderr.splitlines()) if "nvalid" in line]
