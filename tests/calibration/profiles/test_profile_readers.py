"""Readers: every generation of headers, folders of one and of many ranks, collectives once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from profile_files import (
    GENERATIONS,
    LEVEL0,
    NEW,
    collective,
    kernel,
    rank_folder,
    write_kernels,
)

from calibration.profiles.communication import read_communication
from calibration.profiles.folder import find_ranks
from calibration.profiles.kernels import read_kernels
from calibration.profiles.profile import read_profile
from calibration.profiles.skipped import Skips, total
from calibration.profiles.summaries import read_l2_cache, read_step_trace
from calibration.profiles.tensors import Tensor
from hardware_models.errors import InputError


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_of_headers_says_the_same(generation: str, tmp_path: Path) -> None:
    rows = [kernel(0.25, 3.5), kernel(10, "20.125", "Add")]
    path = write_kernels(tmp_path / "kernel_details.csv", rows, GENERATIONS[generation])
    skips = Skips()
    found = read_kernels(path, skips)
    assert not skips.rows()
    assert [k.start_us for k in found.kernels] == [0.25, 10.0]
    assert [k.duration_us for k in found.kernels] == [3.5, 20.125]
    assert [k.cores for k in found.kernels] == [8, 8]
    assert [k.type for k in found.kernels] == ["Cast", "Add"]
    shapes = () if generation == "level0" else (Tensor((32, 128), "DT_BF16", "ND"),)
    assert found.kernels[0].inputs == shapes


def test_times_of_day_keep_their_nanoseconds(tmp_path: Path) -> None:
    rows = [kernel(0.001 * i, 1) for i in range(5)]
    found = read_kernels(write_kernels(tmp_path / "k.csv", rows), Skips())
    steps = [k.start_us for k in found.kernels]
    assert steps == pytest.approx([0.001 * i for i in range(5)], abs=1e-9)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("Duration(us)", "-3", "the duration is negative"),
        ("Duration(us)", "nan", "the duration is no number"),
        ("Duration(us)", "1e999", "infinite"),
        ("Duration(us)", "1_0", "the duration is no number"),
        ("Duration(us)", "", "the duration is missing"),
        ("Duration(us)", 1e12, "longer than a day"),
        ("Start Time(us)", "-1", "the start is negative"),
        ("Wait Time(us)", "-0.1", "the wait is negative"),
        ("Block Dim", "-8", "blocks is negative"),
        ("Block Dim", "99999999", "no whole number from 0 to 65535"),
        ("Block Dim", "2.5", "no whole number"),
        ("Input Shapes", '"32,-1"', "no list of whole numbers"),
        ("Input Shapes", '"' + "9999999," * 9 + '9"', "no die could hold"),
    ],
)
def test_an_impossible_value_leaves_its_row_out_and_is_counted(
    column: str, value: object, reason: str, tmp_path: Path
) -> None:
    rows = [kernel(0, 1), {**kernel(5, 100), column: value}, kernel(10, 2)]
    skips = Skips()
    found = read_kernels(write_kernels(tmp_path / "k.csv", rows), skips)
    assert sum(k.duration_us for k in found.kernels) == 3.0
    (skipped,) = skips.rows()
    assert reason in str(skipped)
    assert (skipped.first_line, skipped.count) == (3, 1)


def test_broken_lines_spoil_no_other(tmp_path: Path) -> None:
    path = write_kernels(tmp_path / "k.csv", [kernel(i, 1) for i in range(6)])
    lines = path.read_bytes().split(b"\r\n")
    lines[2] = lines[2].replace(b'"""32,128"""', b'"32,128')
    lines[3] = lines[3][:30]
    lines[4] = lines[4].replace(b"aclnnCast", b"\xc0\xd6\xff")
    lines[5] = b"x" * (1 << 21)
    skips = Skips()
    found = read_kernels(_write(path, b"\r\n".join(lines)), skips)
    assert [k.line for k in found.kernels] == [2, 5, 7]
    assert found.kernels[1].name == r"\xc0\xd6\xff"
    assert total(skips.rows()) == 3


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = write_kernels(tmp_path / "k.csv", [kernel(0, 1), kernel(1, "25")], LEVEL0[:-1])
    text = path.read_bytes().rstrip(b"\r\n")
    skips = Skips()
    assert len(read_kernels(_write(path, text), skips).kernels) == 1
    assert "cut off" in str(skips.rows()[0])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "k.csv:1"),
        (b"\n\n", "k.csv:1"),
        (b"Name,Type\n", "Start Time(us)"),
        ("Name,Start Time(us),Duration(us)\n".encode("utf-16"), "k.csv:1"),
        (b"Name,Name,Start Time(us),Duration(us)\n", "every column once"),
        (b'"Name,Type\n', "k.csv:1"),
        (b"\x00\x01\x02\n", "k.csv:1"),
        (b'[{"ph": "X", "name": "a"}, {"ph": "X", "name": "b"}]' * 2000, "no kernel_details.csv"),
        (b"column," * 2000 + b"," + b"other column," * 2000 + b"\n", "every column once"),
    ],
)
def test_a_file_that_is_no_kernel_table_is_refused(text: bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_kernels(_write(tmp_path / "k.csv", text), Skips())
    assert named in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_collective_with_a_carrier_counts_once(tmp_path: Path) -> None:
    rows = [
        kernel(0, 10),
        collective(10, 50),
        kernel(12, 45, "hcom_allReduce_AivKernel"),
        collective(10, 50),
        kernel(100, 30, "AicpuKernel", Name="hcom_allGather__2_1_1"),
    ]
    (rank,) = read_profile(_rank(tmp_path, rows))
    counted = rank.counted
    assert [k.duration_us for k in counted.computing] == [10.0]
    assert [k.duration_us for k in counted.collectives] == [50.0, 30.0]
    assert [k.duration_us for k in counted.carriers] == [45.0]
    assert [k.by_vector_cores for k in counted.collectives] == [True, False]


def test_a_carrier_on_the_ai_cpu_marks_no_span(tmp_path: Path) -> None:
    rows = [
        collective(0, 50, "hcom_allGather__1_0_1"),
        kernel(1, 48, "AicpuKernel", Name="hcom_allGather_AicpuKernel"),
        collective(60, 50, "hcom_allGather__1_1_1"),
        kernel(61, 48, "hcom_allGather_AivKernel"),
        collective(120, 50, "hcom_allGather__1_2_1"),
    ]
    (rank,) = read_profile(_rank(tmp_path, rows))
    assert [k.by_vector_cores for k in rank.counted.collectives] == [False, True, False]
    assert len(rank.counted.carriers) == 2


def test_a_cluster_has_its_ranks_in_order_and_a_profile_its_steps(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        rows = [kernel(0, rank + 1), {**kernel(5, 1), "Step Id": 8}]
        rank_folder(tmp_path, rank, rows)
    profile = read_profile(tmp_path)
    assert [r.rank for r in profile] == [0, 2, 10]
    assert [r.kernels[0].duration_us for r in profile] == [1.0, 3.0, 11.0]
    assert profile[0].steps == ("7", "8")


def test_one_folder_or_file_is_one_rank(tmp_path: Path) -> None:
    output = rank_folder(tmp_path, 3, [kernel(0, 1)])
    for path in (output, output.parent):
        assert [files.rank for files in find_ranks(path)] == [3]
    assert find_ranks(output / "kernel_details.csv")[0].rank == 0


def test_slices_of_an_op_summary_are_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    for number, at in enumerate((5000, 0)):
        path = folder / f"op_summary_slice_{number}.csv"
        write_kernels(path, [kernel(at, 1 + number)], GENERATIONS["op_summary"])
    (rank,) = read_profile(tmp_path / "PROF_1")
    assert [(k.start_us, k.duration_us) for k in rank.kernels] == [(0.0, 2.0), (5000.0, 1.0)]


def test_one_rank_in_two_folders_is_refused(tmp_path: Path) -> None:
    rank_folder(tmp_path / "a", 1, [kernel(0, 1)])
    rank_folder(tmp_path / "b", 1, [kernel(0, 1)])
    (tmp_path / "a" / "host_1_ascend_pt").rename(tmp_path / "x_ascend_pt")
    (tmp_path / "b" / "host_1_ascend_pt").rename(tmp_path / "y_ascend_pt")
    with pytest.raises(InputError, match="every rank once"):
        read_profile(tmp_path)


def test_links_out_of_a_cluster_are_not_followed(tmp_path: Path) -> None:
    rank_folder(tmp_path / "elsewhere", 0, [kernel(0, 1)])
    cluster = tmp_path / "cluster"
    rank_folder(cluster, 1, [kernel(0, 1)])
    (cluster / "linked").symlink_to(tmp_path / "elsewhere" / "host_0_ascend_pt")
    (cluster / "loop").symlink_to(cluster)
    assert [files.rank for files in find_ranks(cluster)] == [1]


@pytest.mark.parametrize("name", ["nowhere", "a\nb", "../nowhere", "x" * 300])
def test_a_path_without_a_profile_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="profile"):
        read_profile(tmp_path / name)


def test_collectives_of_a_step_without_the_profilers_own_sum(tmp_path: Path) -> None:
    entry = {
        "Communication Time Info": {
            "Start Timestamp(us)": 5.0, "Elapse Time(ms)": 2.0, "Transit Time(ms)": 0.5,
            "Wait Time(ms)": 1.0, "Synchronization Time(ms)": 0.25, "Idle Time(ms)": 0.5,
        },
        "Communication Bandwidth Info": {
            "HCCS": {"Transit Size(MB)": 3.0}, "SDMA": {"Transit Size(MB)": 3.0},
            "RDMA": {"Transit Size(MB)": 1.0},
        },
    }  # fmt: skip
    broken = {"Communication Time Info": {"Start Timestamp(us)": 5.0, "Elapse Time(ms)": -1}}
    ops = {"hcom_allReduce__1_0_1@99": entry, "Total Op Info@99": entry, "hcom_bad@99": broken}
    path = tmp_path / "communication.json"
    path.write_text(json.dumps({"step7": {"p2p": {}, "collective": {**ops, "x": 3}}, "y": []}))
    skips = Skips()
    (record,) = read_communication(path, skips)
    assert (record.step, record.name, record.group) == ("7", "hcom_allReduce__1_0_1", "99")
    assert (record.elapsed_us, record.wait_us, record.moved_mb) == (2000.0, 1000.0, 4.0)
    assert total(skips.rows()) == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", "[" * 100_000, '{"a": ' + "1" * 5000 + "}", '{"a"\n:']
)
def test_a_communication_file_that_is_no_json_is_refused_with_its_line(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "communication.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"communication\.json:\d"):
        read_communication(path, Skips())


def test_small_tables(tmp_path: Path) -> None:
    steps = tmp_path / "step_trace_time.csv"
    steps.write_text(
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
        "0,7,100,20,5,25,30\n0,8,-1,20,5,25,30\n"
    )
    skips = Skips()
    (step,) = read_step_trace(steps, skips)
    assert (step.step, step.total_us, total(skips.rows())) == ("7", 150.0, 1)
    cache = tmp_path / "l2_cache.csv"
    cache.write_text("Stream Id,Task Id,Hit Rate,Victim Rate,Op Name\n2,1,0.5,0,a\n2,2,0.7,0,a\n"
                     "2,3,N/A,0,b\n2,4,7,0,b\n")  # fmt: skip
    assert read_l2_cache(cache, skips) == {"a": pytest.approx(0.6)}


def test_unused_columns_may_hold_anything(tmp_path: Path) -> None:
    rows = [{**kernel(0, 1), "Context ID": "=HYPERLINK(1)", "Model ID": "\u2028;"}]
    found = read_kernels(write_kernels(tmp_path / "k.csv", rows, NEW), Skips())
    assert len(found.kernels) == 1


def _rank(root: Path, rows: list[object]) -> Path:
    return rank_folder(root, 0, rows).parent  # type: ignore[arg-type]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
