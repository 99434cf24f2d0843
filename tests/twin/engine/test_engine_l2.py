"""Hand-computed cases of the reference engine's rule 7: what lies in L2, and prefetches."""

from __future__ import annotations

import pytest
from engine_graphs import KB, STOPS, Builder, make_hardware, us

from hardware_models.demand import WeightRead


def test_half_arrived_prefetch() -> None:
    """5 KB/us arrive for 2 us; the rest of the weight and of the prefetch share HBM."""
    build = Builder()
    build.prefetch("w", 20 * KB)
    build.add("reader", release_us=2.0, weights=(WeightRead("w", 20 * KB),))
    run = build.run()
    assert run["reader"].resident_bytes == us(10 * KB)
    # Levels: prefetch weight 20 (HBM 1, SDMA 1), reader weight 20 (L2 1, HBM 1/2): SDMA holds
    # the prefetch at 5, HBM leaves 5 for half of the reader's level.
    assert run["reader"].end_us == us(4.0)
    assert run["prefetch.w"].end_us == us(4.0)


def test_unfinished_prefetch_stops_and_frees_its_queue() -> None:
    build = Builder()
    build.prefetch("w", 20 * KB)
    build.prefetch("x", 5 * KB)
    build.add("reader", release_us=2.0, weights=(WeightRead("w", 20 * KB),))
    goes_on, stops = build.run(), build.run(STOPS)
    assert stops["prefetch.w"].end_us == us(2.0)
    assert stops["prefetch.x"].start_us == us(2.0)
    assert goes_on["prefetch.x"].start_us == us(4.0)
    assert stops["reader"].resident_bytes == goes_on["reader"].resident_bytes == us(10 * KB)


def test_prefetch_that_comes_too_late() -> None:
    build = Builder()
    build.prefetch("first", 50 * KB)
    build.prefetch("w", 10 * KB, head_us=2.0)
    build.add("reader", release_us=1.0, weights=(WeightRead("w", 10 * KB),))
    goes_on, skips = build.run(), build.run(STOPS)
    assert goes_on["reader"].resident_bytes == 0.0
    assert goes_on["prefetch.w"].end_us == us(14.0)
    assert (skips["prefetch.w"].start_us, skips["prefetch.w"].end_us) == (us(10.0), us(10.0))


def test_prefetch_whose_weight_is_read_during_its_head_brings_nothing() -> None:
    build = Builder()
    build.prefetch("w", 10 * KB, head_us=3.0)
    build.add("reader", release_us=1.0, weights=(WeightRead("w", 10 * KB),))
    record = build.run(STOPS)["prefetch.w"]
    assert (record.start_us, record.end_us, record.body_us) == (0.0, 3.0, 0.0)


@pytest.mark.parametrize("stream", ["a", "z"])
def test_prefetch_and_reader_that_start_together(stream: str) -> None:
    """Whichever stream comes first, nothing has arrived and the prefetch stops at once."""
    build = Builder()
    build.prefetch("w", 10 * KB, stream=stream)
    build.add("reader", weights=(WeightRead("w", 10 * KB),))
    run = build.run(STOPS)
    assert run["reader"].resident_bytes == 0.0
    assert run["prefetch.w"].end_us == 0.0
    assert run["reader"].end_us == us(1.0)


def test_a_weight_is_read_from_l2_once() -> None:
    build = Builder()
    fetched = build.prefetch("w", 10 * KB)
    build.add("first", deps=(fetched,), weights=(WeightRead("w", 10 * KB),))
    build.add("second", weights=(WeightRead("w", 10 * KB),))
    run = build.run()
    assert run["first"].resident_bytes == 10 * KB
    assert run["second"].resident_bytes == 0.0


def test_what_arrives_behind_the_reader_serves_the_next_reader() -> None:
    build = Builder()
    build.prefetch("w", 20 * KB)
    build.add("first", release_us=2.0, weights=(WeightRead("w", 20 * KB),))
    build.add("second", release_us=10.0, weights=(WeightRead("w", 20 * KB),))
    run = build.run()
    assert run["second"].resident_bytes == us(10 * KB)


def test_resident_is_at_most_what_is_read() -> None:
    build = Builder()
    fetched = build.prefetch("w", 20 * KB)
    build.add("reader", deps=(fetched,), weights=(WeightRead("w", 8 * KB),))
    record = build.run()["reader"]
    assert record.resident_bytes == 8 * KB
    assert (record.body_us, record.bound) == (us(8 / 40), "l2")


def test_weights_of_other_dies_are_elsewhere() -> None:
    build = Builder(dies=2)
    fetched = build.prefetch("w", 20 * KB, die=0)
    build.add("reader", die=1, deps=(fetched,), weights=(WeightRead("w", 20 * KB),))
    assert build.run()["reader"].resident_bytes == 0.0


def test_the_oldest_bytes_are_evicted_first() -> None:
    build = Builder(make_hardware(l2_usable_bytes=25 * KB))
    build.prefetch("old", 10 * KB)
    build.prefetch("middle", 10 * KB)
    last = build.prefetch("new", 10 * KB)
    for name in ("old", "middle", "new"):
        build.add(name, deps=(last,), weights=(WeightRead(name, 10 * KB),))
    run = build.run()
    assert run["old"].resident_bytes == us(5 * KB)
    assert run["middle"].resident_bytes == us(10 * KB)
    assert run["new"].resident_bytes == us(10 * KB)


def test_weight_larger_than_l2_keeps_the_capacity() -> None:
    build = Builder(make_hardware(l2_usable_bytes=25 * KB))
    fetched = build.prefetch("w", 40 * KB)
    build.add("reader", deps=(fetched,), weights=(WeightRead("w", 40 * KB),))
    assert build.run()["reader"].resident_bytes == us(25 * KB)


@pytest.mark.parametrize(("pollution", "left"), [(0.0, 20.0), (0.25, 10.0), (1.0, 0.0)])
def test_streaming_traffic_pollutes(pollution: float, left: float) -> None:
    build = Builder(make_hardware(l2_usable_bytes=20 * KB, l2_pollution=pollution))
    fetched = build.prefetch("w", 20 * KB)
    build.add("stream", deps=(fetched,), hbm_bytes=40 * KB)
    build.add("reader", weights=(WeightRead("w", 20 * KB),))
    assert build.run()["reader"].resident_bytes == us(left * KB)


def test_pollution_enters_when_the_body_ends() -> None:
    build = Builder(make_hardware(l2_usable_bytes=20 * KB, l2_pollution=1.0))
    fetched = build.prefetch("w", 20 * KB)
    build.add("stream", deps=(fetched,), hbm_bytes=40 * KB)
    build.add("reader", stream="moe", release_us=6.0, weights=(WeightRead("w", 20 * KB),))
    assert build.run()["reader"].resident_bytes == us(20 * KB)


def test_pollution_is_older_than_a_prefetch_that_starts_after_it() -> None:
    build = Builder(make_hardware(l2_usable_bytes=30 * KB, l2_pollution=1.0))
    streamed = build.add("stream", hbm_bytes=20 * KB)
    fetched = build.prefetch("w", 20 * KB, deps=(streamed,))
    build.add("reader", deps=(fetched,), weights=(WeightRead("w", 20 * KB),))
    assert build.run()["reader"].resident_bytes == us(20 * KB)


def test_prefetches_and_resident_bytes_do_not_pollute() -> None:
    build = Builder(make_hardware(l2_usable_bytes=40 * KB, l2_pollution=1.0))
    build.prefetch("a", 20 * KB)
    last = build.prefetch("b", 20 * KB)
    build.add("reads a", deps=(last,), weights=(WeightRead("a", 20 * KB),))
    build.add("reads b", weights=(WeightRead("b", 20 * KB),))
    run = build.run()
    assert run["reads a"].resident_bytes == us(20 * KB)
    assert run["reads b"].resident_bytes == us(20 * KB)
