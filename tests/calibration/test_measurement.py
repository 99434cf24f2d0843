"""The project's own measurement schema: what is read, and what is refused where."""

from __future__ import annotations

import pytest

from calibration.measurement import parse_measurements, shipped_measurements
from hardware_models.errors import InputError

HEADER = (
    "row,kind,op,schedule,afd,global_batch,kv_tokens,dies,next_n,measured_us,hardware,cann,source"
)
ROW = "r1,matmul,o_proj,recipe_afd,yes,256,4608,128,2,14.2,a3-752t,not stated,a table"


def test_a_row_is_read_with_its_setting() -> None:
    (row,) = parse_measurements(f"{HEADER}\n{ROW}\n", "own.csv")
    assert (row.row, row.afd, row.dies, row.measured_us) == ("r1", True, 128, 14.2)
    assert row.setting == "recipe_afd batch 256 on 128 dies, KV 4608, next_n 2"


def test_shipped_rows_have_a_source_and_distinct_names() -> None:
    rows = shipped_measurements()
    assert len({row.row for row in rows}) == len(rows) == 14
    assert all(row.source for row in rows)


@pytest.mark.parametrize(
    ("change", "field", "where"),
    [
        (("14.2", "-14.2"), "measured_us", "own.csv:2"),
        (("14.2", "fast"), "measured_us", "own.csv:2"),
        (("14.2", "inf"), "measured_us", "own.csv:2"),
        (("14.2", ""), "measured_us", "own.csv:2"),
        (("yes", "perhaps"), "afd", "own.csv:2"),
        (("128", "0"), "dies", "own.csv:2"),
        (("256", "2.5"), "global_batch", "own.csv:2"),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_and_column(
    change: tuple[str, str], field: str, where: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_measurements(f"{HEADER}\n{ROW.replace(*change)}\n", "own.csv")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{where}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEADER + "\n",
        f"{HEADER.replace(',afd', '')}\n{ROW}\n",
        f"{HEADER}\n{ROW}\n{ROW}\n",
    ],
    ids=["empty file", "no row", "missing column", "duplicate row"],
)
def test_a_broken_table_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"own\.csv"):
        parse_measurements(text, "own.csv")
