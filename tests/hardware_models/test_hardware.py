import pytest

from hardware_models.errors import InputError
from hardware_models.hardware import (
    load_hardware,
    parse_hardware,
    render_hardware,
    shipped_hardware,
    shipped_text,
)

GOOD = """
format: 1
name: die
parameters:
  a_us: {value: 2, unit: us, range: [1, 3], evidence: measured, source: "somewhere"}
"""


@pytest.mark.parametrize("name", shipped_hardware())
def test_every_shipped_parameter_has_unit_range_evidence_and_source(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.name == name
    for parameter in hardware:
        assert parameter.unit
        assert parameter.source
        assert parameter.low <= parameter.value <= parameter.high


@pytest.mark.parametrize("name", shipped_hardware())
def test_rendering_a_die_into_its_own_file_changes_nothing_that_is_read(name: str) -> None:
    hardware = load_hardware(name)
    again = parse_hardware(render_hardware(hardware, shipped_text(name)), "rendered")
    assert dict(again.parameters) == dict(hardware.parameters)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("value: 2", "value: 9", "a_us"),
        ("value: 2", "value: two", "parameters.a_us"),
        ("value: 2", "value: true", "parameters.a_us"),
        ("value: 2", "value: .nan", "a_us"),
        ("format: 1", "format: 1\nformat: 1", "line 3"),
        ("range: [1, 3]", "range: [1]", "parameters.a_us"),
        ("evidence: measured", "evidence: hoped", "parameters.a_us.evidence"),
        ("unit: us, ", "", "parameters.a_us"),
        ("format: 1", "format: 2", "format"),
        ("name: die", "title: die", "file"),
        ("parameters:", "parameters: [", "line 6"),
    ],
)
def test_a_broken_parameter_file_is_named_with_its_field(old: str, new: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hardware(GOOD.replace(old, new), "my.yaml")
    assert caught.value.source == "my.yaml"
    assert caught.value.field == named


def test_an_unknown_parameter_is_refused_and_known_ones_are_listed() -> None:
    hardware = parse_hardware(GOOD, "my.yaml")
    with pytest.raises(InputError, match="a_us"):
        hardware.with_values({"b_us": 1.0})
    assert hardware.with_values({"a_us": 7.0})["a_us"] == 7.0


def test_a_changed_die_leaves_the_shipped_one_as_it_is() -> None:
    before = load_hardware("a3-752t")["hbm_read_gbps"]
    changed = load_hardware("a3-752t").with_values({"hbm_read_gbps": 2 * before})
    assert changed["hbm_read_gbps"] == 2 * before
    assert load_hardware("a3-752t")["hbm_read_gbps"] == before


def test_an_unknown_die_lists_the_shipped_ones() -> None:
    with pytest.raises(InputError, match="a3-752t"):
        load_hardware("a4")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hbm_read_gbps", 0.0),
        ("clock_ghz", 0.0),
        ("cube_head_us", -1.0),
        ("dies_per_chip", 0.0),
        ("aic_count", 12.5),
    ],
)
def test_a_rate_of_zero_and_a_negative_time_are_refused(name: str, value: float) -> None:
    hardware = load_hardware("a3-752t")
    with pytest.raises(InputError, match=name):
        hardware.with_values({name: value})
