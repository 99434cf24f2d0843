"""Line charts: values lie where they belong, intervals hold them, axes are labelled roundly."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twin.report.chart import HEIGHT, WIDTH, Series, Value, line_chart

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(values=VALUES, spread=st.floats(0, 100))
def test_higher_values_are_drawn_higher_inside_the_frame(
    values: list[float], spread: float
) -> None:
    places = [Value(str(i), v, v - spread, v + spread) for i, v in enumerate(values)]
    chart = line_chart("title", "x", [Series("line", places)])
    assert chart is not None
    (line,) = chart.lines
    for mark in line.marks:
        assert 0 < mark.x < WIDTH
        assert -1e-6 <= mark.high_y <= mark.y <= mark.low_y <= HEIGHT + 1e-6
    ranked = sorted(zip(values, line.marks, strict=True), key=lambda pair: pair[0])
    heights = [mark.y for _, mark in ranked]
    assert heights == sorted(heights, reverse=True)


@given(values=VALUES)
@example(values=[5e-324])
def test_ticks_are_few_and_lie_at_their_values(values: list[float]) -> None:
    series = [Series("line", [Value(str(i), v) for i, v in enumerate(values)])]
    chart = line_chart("title", "x", series)
    assert chart is not None
    low, high = min(0.0, *values), max(0.0, *values)
    assert 1 <= len(chart.ticks) <= 7
    for y, label in chart.ticks:
        drawn = high - y / HEIGHT * ((high - low) or 1.0)
        assert float(label) == pytest.approx(drawn, abs=1e-4 * max(high - low, 1e-3))


def test_a_large_number_is_written_out() -> None:
    chart = line_chart("title", "x", [Series("line", [Value("1", 1313.5)])])
    assert chart is not None
    assert [label for _, label in chart.ticks] == ["0", "500", "1000"]


def test_series_share_their_places_and_a_level_is_inside() -> None:
    one = Series("one", [Value("a", 1.0), Value("b", 2.0)])
    two = Series("two", [Value("b", 3.0)])
    chart = line_chart("title", "x", [one, two], (5.0, "limit"))
    assert chart is not None
    assert [name for _, name in chart.places] == ["a", "b"]
    assert chart.lines[1].marks[0].x == chart.lines[0].marks[1].x
    assert chart.lines[0].colour != chart.lines[1].colour
    assert chart.level == (0.0, "limit")


def test_without_values_there_is_no_chart() -> None:
    assert line_chart("title", "x", [Series("line", [])]) is None
