"""The diagnose command: shares, causes, findings, comparison, hostile names, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_files import Row, collective, kernel, rank_folder

from calibration.diagnose import DiagnoseConfig, main
from hardware_models.hardware import load_hardware
from hardware_models.ops import MatMul
from hardware_models.ops.alone import alone_us
from twin.cli import run
from twin.schedule_io import load_schedule
from twin.simulate import SimulateConfig
from twin.simulate import main as simulate_main

PROFILES = Path(__file__).parents[4] / "shared" / "data" / "profiles"
HARDWARE = load_hardware("a3-752t")
MARKUP = "[red]<script>alert(1)</script>\x1b[31m"


def diagnose(folder: Path, *arguments: str) -> int:
    return run("diagnose", DiagnoseConfig, main, [*arguments, f"output={folder}"])


def result(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


def product(at_us: float, duration_us: float, **more: object) -> Row:
    return kernel(
        at_us,
        duration_us,
        "MatMulV3",
        **{"Input Shapes": '"64,4096;8192,4096"', "Input Data Types": "DT_BF16;DT_BF16",
           "Input Formats": "ND;ND", "Output Shapes": '"64,8192"',
           "Output Data Types": "DT_BF16", "Output Formats": "ND",
           "Accelerator Core": "AI_CORE", "Block Dim": 24, **more},
    )  # fmt: skip


def step_rows(slow: float = 1.0) -> list[Row]:
    """100 us of products, 100 us of collective of which 40 lie beside computing, 20 us idle."""
    return [
        product(0, 100 * slow, **{"cube_utilization(%)": 30.0}),
        collective(100 * slow - 40, 100),
        kernel(180 * slow, 20 * slow, "Cast"),
    ]


def communication(output: Path, start_us: float, moved_mb: float = 1.0) -> None:
    record = {
        "Communication Time Info": {
            "Start Timestamp(us)": start_us, "Elapse Time(ms)": 0.1, "Transit Time(ms)": 0.05,
            "Wait Time(ms)": 0.03, "Synchronization Time(ms)": 0.03, "Idle Time(ms)": 0.02,
        },
        "Communication Bandwidth Info": {"SDMA": {"Transit Size(MB)": moved_mb}},
    }  # fmt: skip
    steps = {"step7": {"p2p": {}, "collective": {"hcom_allReduce__1_0_1@5": record}}}
    (output / "communication.json").write_text(json.dumps(steps))


def trace(output: Path, waits: list[dict[str, object]]) -> None:
    names: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "thread_name", "pid": 3, "tid": 9, "args": {"name": "Stream 9"}},
    ]
    (output / "trace_view.json").write_text(json.dumps([*waits, *names]))


def wait(start_us: str, duration_us: float) -> dict[str, object]:
    return {"ph": "X", "name": "EVENT_WAIT", "pid": 3, "tid": 9, "ts": start_us,
            "dur": duration_us}  # fmt: skip


def test_shares_kinds_and_gaps_of_one_rank(tmp_path: Path) -> None:
    rank_folder(tmp_path / "p", 0, step_rows())
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")
    assert found["step_us"] == 200.0
    shares = found["shares"]
    assert shares["computing"] == pytest.approx(0.6)
    assert shares["communication"] == pytest.approx(0.5)
    assert shares["exposed_communication"] == pytest.approx(0.3)
    assert shares["free"] == pytest.approx(0.1)
    kinds = {row["kind"]: row for row in found["kinds"]}
    matmul = kinds["matmul"]
    operations = 2 * 64 * 4096 * 8192
    assert matmul["tflops"] == pytest.approx(operations / 100e-6 / 1e12)
    moved = 2 * (64 * 4096 + 4096 * 8192 + 64 * 8192)
    assert matmul["gbps"] == pytest.approx(moved / 100e-6 / 1e9, rel=1e-6)
    peak = 2 * 4096 * 24 * HARDWARE["clock_ghz"] * 1e9
    rate = HARDWARE["hbm_read_gbps"] * 1e9
    roofline_us = max(operations / peak, moved / rate) * 1e6
    assert matmul["of_roofline"] == pytest.approx(roofline_us / 100, rel=1e-6)
    alone = alone_us(MatMul(64, 4096, 8192, "bf16", "w", "nd"), HARDWARE)
    assert matmul["twin_over_profile"] == pytest.approx(alone / 100)
    assert matmul["cube_utilisation"] == pytest.approx(0.30)
    assert [(row["type"], row["count"]) for row in found["unmapped"]] == [("hcom_allReduce_", 1)]
    # Between the product and the cast 60 us are communication; 20 us remain.
    assert [(g["stream"], g["total_us"]) for g in found["launch_gaps"]] == [("2", 20.0)]


def test_the_three_thresholds_have_advice_that_the_twin_tried(tmp_path: Path) -> None:
    output = rank_folder(tmp_path / "p", 0, step_rows())
    (output / "l2_cache.csv").write_text("Hit Rate,Op Name\n0.4,aclnnMatMulV3\n")
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    hits, cube, moving = result(tmp_path / "run")["findings"]
    assert (hits["value"], hits["state"]) == (pytest.approx(0.4), "missed")
    assert (cube["value"], cube["state"]) == (pytest.approx(0.3), "missed")
    assert (moving["value"], moving["state"]) == (pytest.approx(0.5), "missed")
    spec = MatMul(64, 4096, 8192, "bf16", "w", "nd")
    (resident,) = hits["trials"]
    assert resident["before_us"] == pytest.approx(alone_us(spec, HARDWARE))
    assert resident["after_us"] == pytest.approx(alone_us(spec, HARDWARE, resident=True))
    assert resident["change"] <= 0
    (merged,) = cube["trials"]
    assert merged["before_us"] == pytest.approx(2 * alone_us(spec, HARDWARE))
    assert merged["change"] < 0
    (bound,) = moving["trials"]
    assert bound["after_us"] == pytest.approx(200 * 0.7)


def test_what_is_good_or_not_recorded_is_said(tmp_path: Path) -> None:
    rows = [product(0, 100, **{"cube_utilization(%)": 80.0}), collective(100, 10)]
    rank_folder(tmp_path / "p", 0, rows)
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")["findings"]
    assert [row["state"] for row in found] == ["not recorded", "reached", "reached"]
    assert not any(row["trials"] for row in found)


def test_a_named_schedule_is_tried_with_other_slices(tmp_path: Path) -> None:
    rank_folder(tmp_path / "p", 0, step_rows())
    arguments = [f"profile={tmp_path / 'p'}", "schedule=recipe_afd"]
    assert diagnose(tmp_path / "run", *arguments) == 0
    trials = result(tmp_path / "run")["findings"][2]["trials"][1:]
    assert len(trials) == 3
    now = load_schedule("recipe_afd").deployment.afd
    assert now is not None
    others = [count for count in (1, 2, 3, 4) if count != now.micro_batches]
    expected = [f"micro_batches {now.micro_batches} -> {count}" for count in others]
    assert [trial["what"] for trial in trials] == expected
    assert all(trial["after_us"] or trial["refused"] for trial in trials)


def test_waits_name_the_stream_and_the_rank_that_came_last(tmp_path: Path) -> None:
    base = 1_736_408_883_704_643
    for rank, late in ((0, 0.0), (1, 25.0)):
        output = rank_folder(tmp_path / "p", rank, step_rows(1.0 + 0.3 * rank))
        communication(output, base + 60 + late)
    trace(
        tmp_path / "p" / "host_0_ascend_pt" / "ASCEND_PROFILER_OUTPUT",
        [
            wait(f"{base + 65}.5", 94.5),
            wait(f"{base + 20}", 80.0),
            wait(f"{base + 400}", 7.0),
            wait(f"{base + 500}", 0),
        ],
    )
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")
    causes = [(w["stream"], w["cause"], w["by_rank"], w["total_us"]) for w in found["event_waits"]]
    assert causes == [
        ("9", "collective hcom_allReduce_", 1, 94.5),
        ("9", "stream 2", None, 80.0),
        ("9", "the host, or work that was not recorded", None, 7.0),
    ]
    (row,) = found["imbalance"]
    assert (row["slowest_rank"], row["ranks"]) == (1, 2)
    assert row["over_mean"] == pytest.approx(1.3 / 1.15)
    # Two ranks took part, so the all-reduce has a group and its bytes, and the twin a time.
    kinds = {k["kind"]: k for k in found["kinds"]}
    assert kinds["hccl_collective"]["twin_over_profile"] > 0


def test_waits_for_an_exchange_name_the_rank_that_came_last_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = 1_736_408_883_704_643
    # Two combines: rank 2 comes last to the first, rank 1 to the second; all end together.
    begins = {0: (0, 300), 1: (10, 390), 2: (80, 310)}
    for rank, (first, second) in begins.items():
        rows = [
            kernel(at, end - at, "MoeDistributeCombineV2", **{"Stream ID": 3})
            for at, end in ((first, 100), (second, 400))
        ]
        output = rank_folder(tmp_path / "p", rank, rows)
        trace(output, [wait(f"{base + 20}", 80.0), wait(f"{base + 320}", 80.0 + rank)])
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    cause = "exchange MoeDistributeCombineV2 on stream 3"
    found = [
        (w["rank"], w["cause"], w["by_rank"], w["total_us"])
        for w in result(tmp_path / "run")["event_waits"]
    ]
    assert sorted(found) == sorted(
        (rank, cause, by, us) for rank in begins for by, us in ((2, 80.0), (1, 80.0 + rank))
    )
    # Alike waits of several ranks are one line.
    assert "3: 0 .. 2" in capsys.readouterr().out
    # Of one rank alone nothing says who came last.
    alone = tmp_path / "p" / "host_0_ascend_pt"
    assert diagnose(tmp_path / "one", f"profile={alone}") == 0
    assert {w["by_rank"] for w in result(tmp_path / "one")["event_waits"]} == {None}


def test_a_slower_step_is_exit_5_and_a_faster_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, slow in (("fast", 1.0), ("slow", 1.2)):
        rank_folder(tmp_path / name, 0, step_rows(slow))
    fast, slower = f"{tmp_path / 'fast'}", f"{tmp_path / 'slow'}"
    run_ = tmp_path / "run"
    assert diagnose(run_ / "a", f"profile={slower}", f"against={fast}") == 5
    assert "+20.0%" in capsys.readouterr().err
    assert diagnose(run_ / "b", f"profile={slower}", f"against={fast}", "regression=0.21") == 0
    assert diagnose(run_ / "c", f"profile={fast}", f"against={slower}", "regression=0") == 0
    assert diagnose(run_ / "d", f"profile={fast}", f"against={fast}", "regression=0") == 0
    delta = result(run_ / "a")["against"]
    assert delta["change"] == pytest.approx(0.2)
    largest = delta["types"][0]
    assert (largest["type"], largest["change_us"]) == ("MatMulV3", pytest.approx(20.0))
    assert delta["kinds"][0]["type"] == "matmul"


def test_measured_and_simulated_lie_in_one_trace(tmp_path: Path) -> None:
    arguments = ["schedule=tiny_colocated", "draws=0", f"output={tmp_path / 'sim'}"]
    exported = tmp_path / "simulated"
    config = [*arguments, f"export={exported}"]
    assert run("simulate", SimulateConfig, simulate_main, config) == 0
    rank_folder(tmp_path / "measured", 0, step_rows())
    keys = [f"profile={exported}", f"against={tmp_path / 'measured'}", "regression=1e9"]
    assert diagnose(tmp_path / "run", *keys) == 0
    assert result(tmp_path / "run")["simulated"] is True
    events = json.loads((tmp_path / "run" / "overlay.json").read_text())["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {0: "simulated: rank 0", 1: "measured: rank 0"}
    for pid in titles:
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert min(e["ts"] for e in slices) == 0.0
        assert all(isinstance(e["ts"], float) for e in slices)
    assert len([e for e in events if e["ph"] == "X" and e["pid"] == 1]) == 3


def test_hostile_names_are_shown_and_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [kernel(0, 5, MARKUP, Name=MARKUP, **{"Stream ID": MARKUP, "Step Id": MARKUP})]
    rank_folder(tmp_path / "p", 0, [*rows, {**kernel(9, 1), "Duration(us)": "-4"}])
    profile = f"profile={tmp_path / 'p'}"
    assert diagnose(tmp_path / "run", profile, f"against={tmp_path / 'p'}") == 0
    said = capsys.readouterr().out
    assert "\x1b[31m" not in said
    assert "[red]<script>" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for outside in ("http:", "https:", "src=", "@import", "url("):
        assert outside not in page
    (skipped,) = result(tmp_path / "run")["skipped"]
    assert (skipped["first_line"], skipped["count"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "profile"),
        (["profile=nowhere"], "nowhere"),
        (["profile={here}", "against=nowhere"], "nowhere"),
        (["profile={here}", "regression=-1"], "regression"),
        (["profile={here}", "kv_tokens=-1"], "kv_tokens"),
        (["profile={here}", "schedule=nowhere"], "nowhere"),
        (["profile={empty}"], "kernel_details.csv:1"),
        (["profile={here}", "hardware.die=a9"], "a9"),
    ],
)
def test_wrong_input_is_exit_2_and_named(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_folder(tmp_path / "here", 0, step_rows())
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "kernel_details.csv").touch()
    given = [x.format(here=tmp_path / "here", empty=empty) for x in arguments]
    assert diagnose(tmp_path / "run", *given) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def test_a_hostile_folder_name_reaches_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b[31mred\u202e"
    folder.mkdir()
    (folder / "kernel_details.csv").touch()
    assert diagnose(tmp_path / "run", f'profile="{tmp_path}"') == 2
    error = capsys.readouterr().err
    assert "\\x1b[31mred\\u202e" in error
    assert "\x1b" not in error
    assert "\u202e" not in error


def test_a_profile_whose_every_row_is_broken_says_so(tmp_path: Path) -> None:
    rank_folder(tmp_path / "p", 0, [{**kernel(0, 1), "Duration(us)": "x"}])
    assert diagnose(tmp_path / "run", f"profile={tmp_path / 'p'}") == 0
    found = result(tmp_path / "run")
    assert found["kernel_us"] == 0
    assert found["skipped"][0]["count"] == 1


FOLDERS = sorted(PROFILES.glob("*_ascend_pt"))


@pytest.mark.skipif(not FOLDERS, reason="no ../shared/data/profiles here")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_real_profiles_agree_with_the_profilers_own_times(folder: Path, tmp_path: Path) -> None:
    assert diagnose(tmp_path, f"profile={folder}") == 0
    (step,) = result(tmp_path)["steps"]
    text = (folder / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").read_text()
    header, values = (line.split(",") for line in text.splitlines())
    said = {name: float(value) for name, value in zip(header, values, strict=True) if value}
    assert step["computing_us"] == pytest.approx(said["Computing"], abs=0.1)
    assert step["communication_us"] == pytest.approx(said["Communication"], abs=0.1)
    assert step["exposed_us"] == pytest.approx(said["Communication(Not Overlapped)"], abs=0.1)
    assert step["free_us"] == pytest.approx(said["Free"], abs=0.1)
