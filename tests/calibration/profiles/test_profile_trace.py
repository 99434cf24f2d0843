"""Streaming a trace: the same events as a JSON parser, in bounded memory, errors with lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.profiles import trace
from calibration.profiles.skipped import Skips, total
from calibration.profiles.trace import stream_events
from calibration.profiles.waits import read_trace
from hardware_models.errors import InputError

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=12)


def events_of(path: Path) -> list[dict[str, object]]:
    return [event for _, event in stream_events(path, Skips())]


@given(EVENTS, st.sampled_from([None, 0, 2]), st.integers(1, 40))
def test_every_chunk_size_gives_what_a_parser_gives(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, Any]],
    indent: int | None,
    chunk: int,
) -> None:
    path = tmp_path_factory.mktemp("t") / "trace_view.json"
    path.write_text(json.dumps(events, indent=indent, ensure_ascii=False), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "CHUNK_BYTES", chunk)
        assert events_of(path) == events


@given(EVENTS, st.data())
def test_a_trace_cut_off_anywhere_is_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = json.dumps(events, indent=1)
    cut = data.draw(st.integers(0, len(text) - 1))
    path = tmp_path_factory.mktemp("t") / "trace_view.json"
    path.write_text(text[:cut])
    with pytest.raises(InputError, match=r"trace_view\.json:\d+: ") as caught:
        events_of(path)
    line = int(str(caught.value).partition("trace_view.json:")[2].partition(":")[0])
    assert line <= text[:cut].count("\n") + 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("{}", 1),
        ("[", 1),
        ('[{"ph": "X"},\n{"ph": }]', 2),
        ('[{"ph": "X"}\n{"ph": "X"}]', 2),
        ('[{"ph": "X"}]\n\nmore', 3),
        ('[\n\n{"dur": ' + "9" * 5000 + "}]", 3),
        ("[\n" + "[" * 200_000, 2),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"trace_view\.json:{line}: "):
        events_of(path)


def test_an_element_that_is_no_event_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text('[1, {"ph": "X"},\n "x", null]')
    skips = Skips()
    assert [line for line, _ in stream_events(path, skips)] == [1]
    assert total(skips.rows()) == 3


def test_an_event_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "LONGEST_EVENT", 1 << 12)
    monkeypatch.setattr(trace, "CHUNK_BYTES", 1 << 10)
    path = tmp_path / "trace_view.json"
    path.write_text('[\n{"name": "' + "x" * (1 << 16))
    read: list[int] = []
    with pytest.raises(InputError, match="whole JSON event"):
        list(stream_events(path, Skips(), read.append))
    assert sum(read) < 1 << 14


def _event(**more: object) -> dict[str, object]:
    return {"ph": "X", "name": "EVENT_WAIT", "pid": 5, "tid": 2, "ts": "1000000.500", "dur": 3,
            **more}  # fmt: skip


def test_waits_and_steps_with_names_that_come_last(tmp_path: Path) -> None:
    events = [
        _event(),
        _event(tid=4, ts="1000010.25", dur=0.5),
        _event(pid=6),
        _event(dur=-1),
        _event(dur=float("nan")),
        _event(ts="soon"),
        _event(name="ProfilerStep#12", pid=1, dur=50),
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "process_name", "pid": 6, "args": {"name": "Python"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 2, "args": {"name": "Stream 2"}},
        {"ph": "M", "name": "thread_name", "pid": [5], "tid": {}, "args": {"name": "Stream 9"}},
    ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    skips = Skips()
    facts = read_trace(path, 1_000_000, skips)
    assert [(w.stream, w.start_us, w.end_us) for w in facts.waits] == [
        ("2", 0.5, 3.5),
        ("4", 10.25, 10.75),
    ]
    assert [(s.step, s.duration_us) for s in facts.steps] == [("12", 50.0)]
    assert (facts.events, total(skips.rows())) == (11, 3)


# VmHWM, not ru_maxrss: that one begins at the peak of the process that started this one.
_MEASURE = """
import sys
from pathlib import Path
from calibration.profiles.skipped import Skips
from calibration.profiles.waits import read_trace
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
before = peak()
facts = read_trace(Path(sys.argv[1]), 0, Skips())
print(facts.events, before, peak())
"""


def memory_of(path: Path, megabytes: int) -> tuple[int, int, int]:
    """Events, and the peak memory in KiB before and after reading a trace of this size."""
    event = json.dumps(_event(name="aclnnAdd", args={"Call stack": "x" * 900}))
    count = megabytes * 1_000_000 // (len(event) + 2)
    with path.open("w") as file:
        file.write("[" + event)
        for _ in range(count - 1):
            file.write(",\n" + event)
        file.write("]")
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    events, before, after = (int(word) for word in done.stdout.split())
    assert events == count
    return events, before, after


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    _, before, after = memory_of(tmp_path / "trace_view.json", 60)
    assert after - before < 30_000


@pytest.mark.nightly
def test_half_a_gigabyte_reads_under_500_mb(tmp_path: Path) -> None:
    _, _, after = memory_of(tmp_path / "trace_view.json", 500)
    assert after < 500_000
