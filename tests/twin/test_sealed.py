"""Sealed predictions: read back equal, refused where any part was altered, dated elsewhere."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import dump_hardware, load_hardware, parse_hardware, shipped_hardware
from twin.cli import run
from twin.schedule_io import load_schedule
from twin.sealed import SEALED, read_sealed
from twin.simulate import SimulateConfig, main

ARGUMENTS = ("schedule=tiny_colocated", "seal=true", "draws=4")


def simulate(folder: Path, *arguments: str) -> int:
    return run("simulate", SimulateConfig, main, [*ARGUMENTS, *arguments, f"output={folder}"])


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    assert simulate(folder) == 0
    return folder / SEALED


def test_a_sealed_file_reads_back_what_was_predicted(sealed: Path) -> None:
    found = read_sealed(sealed)
    written = json.loads((sealed.parent / "result.json").read_text("utf-8"))
    assert found.schedule == load_schedule("tiny_colocated")
    assert found.hardware == load_hardware("a3-752t")
    assert found.step_us == pytest.approx(written["step_ms"] * 1e3)
    assert [found.low_us, found.high_us] == pytest.approx([ms * 1e3 for ms in written["interval"]])
    assert read_sealed(sealed, found.hash) == found


def test_the_date_is_in_the_sealed_file_alone(sealed: Path, tmp_path: Path) -> None:
    assert simulate(tmp_path) == 0
    first, second = (folder / "result.json" for folder in (sealed.parent, tmp_path))
    assert first.read_bytes() == second.read_bytes()
    date = read_sealed(sealed).sealed_at
    assert date.encode() not in first.read_bytes()
    assert date[:4].isdigit()
    assert date.endswith("Z")


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a JSON file that hold no others."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return 1.5
    return value * 1.01 + 1 if isinstance(value, (int, float)) else f"{value} "


@given(st.data())
def test_whatever_is_altered_is_named(
    sealed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = json.loads(sealed.read_text("utf-8"))
    path = data.draw(st.sampled_from(sorted(leaves(whole), key=repr)))
    changed = copy.deepcopy(whole)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other(inner[path[-1]])
    bent = tmp_path_factory.getbasetemp() / "bent.json"
    bent.write_text(json.dumps(changed), "utf-8")
    named = {"hash": "hashes", "hashes": path[-1]}.get(str(path[0]), path[0])
    with pytest.raises(InputError, match="altered") as caught:
        read_sealed(bent)
    assert caught.value.value == [named]


@pytest.mark.parametrize("part", ["schedule", "interval", "hash", "sealed_at"])
def test_a_part_left_out_is_named(part: str, sealed: Path, tmp_path: Path) -> None:
    whole = json.loads(sealed.read_text("utf-8"))
    del whole[part]
    (tmp_path / SEALED).write_text(json.dumps(whole), "utf-8")
    with pytest.raises(InputError, match=part):
        read_sealed(tmp_path / SEALED)


def test_another_layout_of_the_same_file_is_no_alteration(sealed: Path, tmp_path: Path) -> None:
    (tmp_path / SEALED).write_text(json.dumps(json.loads(sealed.read_text("utf-8"))), "utf-8")
    assert read_sealed(tmp_path / SEALED) == read_sealed(sealed)


def test_a_file_sealed_anew_is_told_by_its_hash(sealed: Path, tmp_path: Path) -> None:
    known = read_sealed(sealed).hash
    assert simulate(tmp_path, "draws=5") == 0
    with pytest.raises(InputError, match="sealed anew"):
        read_sealed(tmp_path / SEALED, known)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "NaN", '{"hashes": {}}', "[" * 9999])
def test_what_is_no_sealed_file_is_wrong_input(text: str, tmp_path: Path) -> None:
    (tmp_path / SEALED).write_text(text, "utf-8")
    with pytest.raises(InputError, match="sealed"):
        read_sealed(tmp_path / SEALED)


def test_a_seal_is_never_overwritten_and_has_an_interval(
    sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sealed.read_bytes()
    assert simulate(sealed.parent) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert sealed.read_bytes() == before
    assert simulate(tmp_path, "draws=0") == 2
    assert "draws" in capsys.readouterr().err


@pytest.mark.parametrize("name", shipped_hardware())
def test_a_die_written_alone_reads_back_equal(name: str) -> None:
    die = load_hardware(name)
    fraction = next(p for p in die if p.value != int(p.value))
    changed = die.with_values({fraction.name: fraction.value * 0.999})
    for each in (die, changed):
        assert parse_hardware(dump_hardware(each), name) == each
