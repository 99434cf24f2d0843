"""Races between streams: what is found, and what is none."""

from __future__ import annotations

import torch

from runtime_npu.lower.captured import _Reader
from runtime_npu.lower.races import Races
from runtime_npu.lower.trace import OP


def handed_over(*, waits: bool = True, keeps: bool = True) -> Races:
    """main makes rows, link reads them."""
    races = Races()
    races.call("make", "main", [], ["rows"])
    races.record("made", "main")
    races.call("other", "link", [], [])
    if waits:
        races.wait("made", "link")
    if keeps:
        races.keep("rows", "link")
    races.call("send", "link", ["rows"], [])
    return races


def test_rows_that_are_waited_for_and_kept_are_handed_over() -> None:
    assert handed_over().faults("send") == ()


def test_a_wait_less_and_a_record_less_are_found() -> None:
    assert handed_over(waits=False).faults("send") == ("reads make of main without waiting for it",)
    freed = handed_over(keeps=False)
    assert freed.faults("send") == ()
    # The next call on main may get the rows' memory while link still reads it.
    freed.call("go on", "main", [], ["other rows"])
    assert freed.faults("send") == ("reads make of main, whose memory is not kept for link",)


def test_an_event_covers_what_its_stream_had_waited_for_and_nothing_later() -> None:
    races = handed_over()
    races.record("sent", "link")
    races.wait("sent", "moe")
    races.call("compute", "moe", ["rows"], ["made of rows"], uses_data=False)
    assert races.faults("compute") == ()
    races.call("make again", "main", [], ["rows"])
    races.wait("made", "link")
    races.call("send again", "link", ["rows"], [])
    assert races.early("send again") == ("reads make again of main without waiting for it",)


def test_memory_needs_no_record_where_its_stream_waits_for_the_reader() -> None:
    for waits in (True, False):
        races = handed_over(keeps=False)
        races.record("sent", "link")
        if waits:
            races.wait("sent", "main")
        races.call("go on", "main", [], ["other rows"])
        assert (races.faults("send") == ()) == waits
    # As long as somebody still uses it, it cannot go.
    races = handed_over(keeps=False)
    races.record("sent", "link")
    races.call("use again", "main", ["rows"], [])
    races.wait("sent", "main")
    races.call("go on", "main", [], ["other rows"])
    assert races.faults("send") == ()


def test_the_own_streams_rows_need_nothing() -> None:
    races = Races()
    races.call("make", "main", [], ["rows"])
    races.call("read", "main", ["rows", "a weight"], ["rows"])
    races.call("read twice", "main", ["rows"], [])
    assert races.faults("read") == races.faults("read twice") == ()


def enter(keys: list[str], values: list[str]) -> None:
    """What torchair calls where a stream begins."""


def leave() -> None:
    """And where it ends."""


enter.__name__, leave.__name__ = "air.scope_enter", "air.scope_exit"


def test_what_a_captured_call_writes_in_place_is_its_own() -> None:
    graph = torch.fx.Graph()

    def call(target: object, *args: object, op: str = "") -> torch.fx.Node:
        node = graph.call_function(target, args)  # type: ignore[arg-type]
        node.meta["custom"] = {OP: op} if op else {}
        return node

    rows = call(torch.ops.aten.zeros.default, [2], op="make")
    call(enter, ["_user_stream_label"], ["link"])
    call(torch.ops.aten.neg_.default, rows, op="turn")
    call(leave)
    call(torch.ops.aten.abs.default, rows, op="read")
    (read,) = (op for op in _Reader(graph).read(graph) if op.name == "read")
    assert "reads turn of link without waiting for it" in read.races
