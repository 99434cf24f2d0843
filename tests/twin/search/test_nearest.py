"""The nearest feasible change: feasible itself, and nothing nearer is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_models.hardware import load_hardware
from twin.models import load_model
from twin.schedule_io import load_schedule
from twin.search.changes import with_batch, with_dies, with_sizes
from twin.search.config import Drives, Knob
from twin.search.nearest import Change, has_feasible, nearest_changes
from twin.search.space import Space

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")
TOO_MANY = 160 * 128
CORES = {"main_cores": Knob(drives="cores", stage="stage2", levels=(12, 16))}


def colocated(batch: int, dies: int) -> Space:
    base = with_batch(with_dies(load_schedule("recipe_colocated"), dies), batch)
    return Space(base, MODEL, HARDWARE, CORES, ())


def by_field(changes: list[Change]) -> dict[str, Change]:
    return {change.field: change for change in changes}


def test_too_large_a_batch_fits_with_less_or_on_more_dies() -> None:
    space = colocated(TOO_MANY, 128)
    assert not has_feasible(space)
    found = by_field(nearest_changes(space))
    batch = found["workload.global_batch"].to
    assert isinstance(batch, int)
    assert has_feasible(colocated(batch, 128))
    assert not has_feasible(colocated(batch + 1, 128))
    tokens = found["workload.kv_tokens"].to
    assert isinstance(tokens, int)
    for kv_tokens, fits in ((tokens, True), (tokens + 1, False)):
        workload = replace(space.base.workload, kv_tokens=kv_tokens)
        assert has_feasible(replace(space, base=replace(space.base, workload=workload))) is fits
    dies = found["deployment.dies"].to
    assert dies is None or (isinstance(dies, int) and dies > 128)


def test_too_few_dies_for_the_weights_need_more_and_no_less_traffic() -> None:
    base = with_sizes(colocated(256, 128).base, {"lm_head_tp": 8})
    space = Space(base, MODEL, HARDWARE, CORES, (8,))
    assert not has_feasible(space)
    found = by_field(nearest_changes(space))
    assert found["workload.global_batch"].to is None
    assert "no workload.global_batch helps" in found["workload.global_batch"].text
    dies = found["deployment.dies"].to
    assert isinstance(dies, int)
    assert has_feasible(replace(space, dies=(dies,)))
    assert not any(has_feasible(replace(space, dies=(fewer,))) for fewer in range(8, dies, 8))
    assert found["deployment.dies"].text == f"deployment.dies={dies} (it is 8)"


@pytest.mark.parametrize("knob", ["batch", "dies"])
def test_what_a_knob_drives_is_left_to_it(knob: str) -> None:
    space = colocated(TOO_MANY, 128)
    if knob == "dies":
        space = replace(space, dies=(64, 128))
        assert "deployment.dies" not in by_field(nearest_changes(space))
        return
    levels = (TOO_MANY, 2 * TOO_MANY)
    space = replace(space, knobs={**CORES, "batch": Knob(drives="batch", levels=levels)})
    assert "workload.global_batch" not in by_field(nearest_changes(space))


def test_quantised_already_is_no_change() -> None:
    space = colocated(TOO_MANY, 128)
    deployment = replace(space.base.deployment, quantisation="bf16")
    plain = replace(space, base=replace(space.base, deployment=deployment))
    assert "deployment.quantisation" in by_field(nearest_changes(plain))
    assert "deployment.quantisation" not in by_field(nearest_changes(space))


@pytest.mark.parametrize(
    ("drives", "level", "cores"), [("cores", 40, 24), ("vector_cores", 90, 48)]
)
def test_more_cores_than_the_die_has_name_the_most_that_it_allows(
    drives: Drives, level: int, cores: int
) -> None:
    knob = Knob(drives=drives, stage="stage2", levels=(level,))
    space = replace(colocated(512, 128), knobs={"split": knob})
    assert not has_feasible(space)
    change = by_field(nearest_changes(space))["search.knobs.split.levels"]
    assert change.was == f"[{level}]"
    assert change.to is not None
    most = int(str(change.to)[1:-1])
    assert 1 <= most <= cores
    for at in range(1, cores + 1):
        tried = replace(space, knobs={"split": replace(knob, levels=(at,))})
        assert has_feasible(tried) if at == most else at < most or not has_feasible(tried)


def test_cores_that_the_die_has_are_no_change() -> None:
    fields = by_field(nearest_changes(colocated(TOO_MANY, 128)))
    assert not any(field.startswith("search.knobs") for field in fields)
