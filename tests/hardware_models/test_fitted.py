"""What a fit adds to a parameter file: read strictly, written so that it reads back."""

from __future__ import annotations

import pytest

from calibration.limits import limits
from hardware_models.errors import InputError
from hardware_models.fitted import Correlation
from hardware_models.hardware import (
    load_hardware,
    parse_hardware,
    render_hardware,
    shipped_hardware,
    shipped_text,
)
from hardware_models.ops import MatMul
from hardware_models.shapes import is_inside, ranges_of

GOOD = """
format: 1
name: die
parameters:
  a_us: {value: 2, unit: us, range: [1, 3], evidence: fitted, source: "somewhere"}
  b_us: {value: 2, unit: us, range: [1, 3], evidence: fitted, source: "somewhere"}
correlations:
  - parameters: [a_us, b_us]
    lower: [[1], [-0.5, 1]]
fitted_shapes:
  matmul: {m: [1, 8]}
"""


def test_a_file_of_a_fit_is_read() -> None:
    die = parse_hardware(GOOD, "my.yaml")
    assert die.correlations == (Correlation(("a_us", "b_us"), ((1.0,), (-0.5, 1.0))),)
    assert die.correlations[0].matrix() == [[1.0, -0.5], [-0.5, 1.0]]
    assert die.fitted_shapes == {"matmul": {"m": (1.0, 8.0)}}
    changed = die.with_values({"a_us": 1.5})
    assert changed.correlations == die.correlations
    assert changed.fitted_shapes == die.fitted_shapes


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[a_us, b_us]", "[a_us, c_us]", "correlations.0.parameters"),
        ("[a_us, b_us]", "[a_us, a_us]", "correlations.0.parameters"),
        ("[a_us, b_us]", "a_us", "correlations.0.parameters"),
        ("[[1], [-0.5, 1]]", "[[1], [-1.5, 1]]", "correlations.0.lower"),
        ("[[1], [-0.5, 1]]", "[[1], [1]]", "correlations.0.lower"),
        ("[[1], [-0.5, 1]]", "[[1], [-0.5, 0.9]]", "correlations.0.lower"),
        ("[[1], [-0.5, 1]]", "[[1], [.nan, 1]]", "correlations.0.lower"),
        ("    lower", "    upper", "correlations.0"),
        ("[1, 8]", "[8, 1]", "fitted_shapes.matmul.m"),
        ("[1, 8]", "[1]", "fitted_shapes.matmul.m"),
        ("{m: [1, 8]}", "[1, 8]", "fitted_shapes.matmul"),
        ("fitted_shapes:", "shapes:", "file"),
    ],
)
def test_a_broken_block_is_named(old: str, new: str, named: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse_hardware(GOOD.replace(old, new), "my.yaml")
    assert caught.value.source == "my.yaml"
    assert caught.value.field == named


def test_correlations_that_no_parameters_can_have_are_refused() -> None:
    third = GOOD.replace(
        "correlations:",
        '  c_us: {value: 2, unit: us, range: [1, 3], evidence: fitted, source: "x"}\ncorrelations:',
    ).replace("[a_us, b_us]", "[a_us, b_us, c_us]")
    impossible = third.replace("[[1], [-0.5, 1]]", "[[1], [-0.9, 1], [-0.9, -0.9, 1]]")
    with pytest.raises(InputError, match="semidefinite"):
        parse_hardware(impossible, "my.yaml")
    parse_hardware(impossible.replace("-0.9", "0.9"), "my.yaml")


@pytest.mark.parametrize("name", [name for name in shipped_hardware() if name != "cpu"])
def test_a_die_reads_back_with_what_its_fit_added(name: str) -> None:
    die = load_hardware(name)
    assert die.correlations
    assert die.fitted_shapes
    assert parse_hardware(render_hardware(die, shipped_text(name)), "again") == die


@pytest.mark.parametrize("name", shipped_hardware())
def test_no_fitted_number_or_range_is_beyond_physics(name: str) -> None:
    for parameter in load_hardware(name):
        if parameter.evidence in ("fitted", "interpolated"):
            low, high = limits(parameter.name)
            assert low <= parameter.low, parameter.name
            assert parameter.high <= high, parameter.name


def test_an_efficiency_is_a_share() -> None:
    with pytest.raises(InputError, match="matmul_efficiency"):
        load_hardware("910b2").with_values({"matmul_efficiency": 1.01})


def test_a_shape_is_inside_only_where_every_number_is() -> None:
    fitted = [MatMul(1, 512, 128, "bf16", "w"), MatMul(64, 4096, 128, "bf16", "w")]
    ranges = ranges_of(fitted)
    assert is_inside(MatMul(8, 1024, 128, "bf16", "other"), ranges)
    assert not is_inside(MatMul(65, 1024, 128, "bf16", "w"), ranges)
    assert not is_inside(MatMul(8, 1024, 129, "bf16", "w"), ranges)
    assert not is_inside(MatMul(8, 1024, 128, "bf16", "w"), {})
    wider = ranges_of([MatMul(128, 512, 128, "bf16", "w")], ranges)
    assert wider["matmul"]["m"] == (1.0, 128.0)
    assert ranges["matmul"]["m"] == (1.0, 64.0)
