"""Broken files: an error with file and line, or skipped and counted; never a wrong total."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_files import GENERATIONS, kernel, write_kernels

from calibration.profiles.communication import read_communication
from calibration.profiles.kernels import read_kernels
from calibration.profiles.profile import read_profile
from calibration.profiles.skipped import Skips, total
from calibration.profiles.summaries import read_l2_cache, read_statistic, read_step_trace
from calibration.profiles.waits import read_trace
from hardware_models.errors import InputError

CELLS = st.one_of(
    st.text(max_size=20).filter(lambda text: "\n" not in text),
    st.sampled_from(
        ["-1", "nan", "inf", "1e400", "=1+1", "@SUM(A1)", "../../etc/passwd", "9" * 400,
         '"', '""', "1,2", "\x00", "\ufeff", "\u2028", "\x85", "N/A", "[red]x[/red]"]
    ),
    st.floats().map(str),
    st.integers().map(str),
)  # fmt: skip
COLUMNS = st.sampled_from(
    ["Duration(us)", "Start Time(us)", "Wait Time(us)", "Block Dim", "Name", "Type", "Step Id",
     "Stream ID", "Input Shapes", "Input Data Types", "Accelerator Core"]
)  # fmt: skip


@given(st.data(), st.sampled_from(sorted(GENERATIONS)))
def test_bytes_changed_in_some_lines_leave_the_others_total(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, generation: str
) -> None:
    path = tmp_path_factory.mktemp("f") / "kernel_details.csv"
    rows = [kernel(10 * i, 2**i) for i in range(8)]
    lines = write_kernels(path, rows, GENERATIONS[generation]).read_bytes().splitlines(True)
    spoilt = data.draw(st.sets(st.integers(1, 8), max_size=3))
    for number in spoilt:
        junk = data.draw(st.binary(min_size=1, max_size=30)).replace(b"\n", b"")
        at = data.draw(st.integers(0, len(lines[number]) - 2))
        lines[number] = lines[number][:at] + junk + lines[number][at + len(junk) : -2] + b"\r\n"
    path.write_bytes(b"".join(lines))
    skips = Skips()
    found = read_kernels(path, skips)
    sound = {k.line: k.duration_us for k in found.kernels if k.line - 1 not in spoilt}
    assert sound == {i + 2: 2.0**i for i in range(8) if i + 1 not in spoilt}
    # A line of blanks is no row at all; every other line is read or counted.
    blank = sum(not lines[number].strip() for number in spoilt)
    assert len(found.kernels) + total(skips.rows()) + blank == 8


@given(COLUMNS, CELLS)
def test_any_cell_is_kept_as_it_is_or_its_row_counted(
    tmp_path_factory: pytest.TempPathFactory, column: str, cell: str
) -> None:
    path = tmp_path_factory.mktemp("f") / "kernel_details.csv"
    rows = [kernel(0, 1), {**kernel(10, 50), column: cell}, kernel(200, 4)]
    skips = Skips()
    found = read_kernels(write_kernels(path, rows), skips)
    assert len(found.kernels) + total(skips.rows()) >= 3
    times = [k.duration_us for k in found.kernels]
    assert (times[0], times[-1]) == (1.0, 4.0)
    assert all(min(k.duration_us, k.start_us, k.wait_us) >= 0 for k in found.kernels)
    if len(times) == 3 and column != "Duration(us)":
        assert times[1] == 50.0


@given(st.data())
def test_a_table_cut_off_anywhere_gives_whole_rows_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("f") / "kernel_details.csv"
    whole = write_kernels(path, [kernel(10 * i, 2**i) for i in range(6)]).read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    if cut < whole.index(b"\r\n"):
        # A header that was cut off may lack optional columns only.
        with suppress(InputError):
            assert not read_kernels(path, Skips()).kernels
        return
    complete = max(0, whole[:cut].count(b"\n") - 1)
    found = read_kernels(path, Skips())
    assert [k.duration_us for k in found.kernels] == [2.0**i for i in range(complete)]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_with_the_file(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("f") / "file"
    path.write_bytes(junk)
    for read in (read_kernels, read_statistic, read_step_trace, read_l2_cache, read_communication):
        with pytest.raises(InputError) as caught:
            read(path, Skips())
        assert f"{path}:" in str(caught.value)
    with suppress(InputError):
        assert read_trace(path, 0, Skips()).events == len(json.loads(junk))


NAMES = [
    "Communication Time Info", "Elapse Time(ms)", "Start Timestamp(us)", "SDMA", "p2p",
    "Communication Bandwidth Info", "collective", "Transit Size(MB)", "step1", "x@1",
]  # fmt: skip
FIELDS = st.sampled_from(["ph", "name", "pid", "tid", "ts", "dur", "args"])
WORDS = st.sampled_from(["X", "M", "EVENT_WAIT", "thread_name"])
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), NESTED, max_size=3))
def test_any_object_is_a_communication_file_with_its_faults_counted(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("f") / "communication.json"
    path.write_text(json.dumps(data))
    for record in read_communication(path, Skips()):
        assert record.elapsed_us >= 0
        assert record.moved_mb >= 0


@given(st.lists(st.dictionaries(FIELDS, WORDS | NESTED)))
def test_any_events_are_a_trace_with_its_faults_counted(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("f") / "trace_view.json"
    path.write_text(json.dumps(events))
    facts = read_trace(path, 0, Skips())
    assert facts.events == len(events)
    assert all(wait.duration_us >= 0 for wait in facts.waits)


def test_a_rank_folder_whose_side_files_are_empty_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("op_statistic.csv", "step_trace_time.csv", "communication.json", "l2_cache.csv"):
        folder = tmp_path / name
        write_kernels(folder / "kernel_details.csv", [kernel(0, 1)])
        (folder / name).touch()
        with pytest.raises(InputError, match=f"{name}:1"):
            read_profile(folder)
