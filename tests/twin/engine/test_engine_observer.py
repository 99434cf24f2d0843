"""Counters: step functions of what was granted, for the trace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_graphs import KB, Builder, make_hardware

from hardware_models.demand import WeightRead
from twin.engine.observer import Counters, Load
from twin.engine.options import EngineOptions
from twin.engine.reference import simulate


def test_counters_of_two_flows() -> None:
    build = Builder()
    build.add("a", cores=(3, 1), hbm_bytes=40 * KB, hbm_cap_gbps=8.0)
    build.add("b", stream="moe", cores=(2, 4), release_us=2.0, hbm_bytes=10 * KB)
    counters = Counters()
    simulate(build.graph(), observer=counters)
    assert counters.series[0, "aic"] == [(0.0, 3), (2.0, 5), (4.0, 3), (pytest.approx(5.75), 0)]
    assert counters.series[0, "aiv"] == [(0.0, 1), (2.0, 5), (4.0, 1), (pytest.approx(5.75), 0)]
    assert counters.series[0, "hbm_gbps"] == [
        (0.0, 8.0),
        (2.0, 10.0),
        (4.0, 8.0),
        (pytest.approx(5.75), 0.0),
    ]
    assert (0, "sdma_gbps") not in counters.series


def test_counters_of_l2_and_links() -> None:
    build = Builder(make_hardware(l2_pollution=0.5), dies=2)
    build.prefetch("w", 10 * KB)
    build.add("reader", release_us=2.0, weights=(WeightRead("w", 14 * KB),))
    build.add("send", stream="link", peer=1, link_bytes=4 * KB)
    counters = Counters()
    simulate(build.graph(), EngineOptions(), counters)
    assert counters.series[0, "l2_resident_bytes"] == [
        (2.0, 0.0),
        (pytest.approx(2.4), 2 * KB),
    ]
    assert counters.series[0, "sdma_gbps"] == [(0.0, 5.0), (2.0, 0.0)]
    assert counters.series[0, "link_out_gbps"] == [(0.0, 2.0), (2.0, 0.0)]
    assert counters.series[1, "link_in_gbps"] == [(0.0, 2.0), (2.0, 0.0)]


def test_ends_of_one_instant_are_told_by_die_and_stream_name() -> None:
    class Ends(Counters):
        def __init__(self) -> None:
            super().__init__()
            self.ended: list[int] = []

        def speed(
            self, time_us: float, op: int, speed_per_us: float, loads: Sequence[Load]
        ) -> None:
            if speed_per_us == 0.0:
                self.ended.append(op)

    build = Builder(dies=2)
    build.add("op0", die=1, stream="a", cube_us=2.0)
    build.add("op1", die=0, stream="z", cube_us=2.0)
    build.add("op2", die=0, stream="a", release_us=1.0, cube_us=1.0)
    observer = Ends()
    simulate(build.graph(), observer=observer)
    assert observer.ended == [2, 1, 0]


def test_observing_changes_nothing() -> None:
    build = Builder()
    build.prefetch("w", 20 * KB)
    build.add("reader", release_us=2.0, weights=(WeightRead("w", 20 * KB),))
    for mode in ("continues", "stops"):
        options = EngineOptions(unfinished_prefetch=mode)
        assert simulate(build.graph(), options, Counters()) == simulate(build.graph(), options)
