"""Changing the transport of a schedule: what goes, what moves, and that it stays valid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from hardware_models.hardware import load_hardware
from twin.cli import run
from twin.deployment import Transport
from twin.models import load_model
from twin.schedule import CoreLimit
from twin.schedule_io import load_schedule
from twin.search.__main__ import main
from twin.search.config import SearchConfig
from twin.search.space import present_op
from twin.search.transport import with_transport
from twin.validate import validate_schedule

AFD = load_schedule("recipe_afd")
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("start", TRANSPORTS)
def test_every_change_gives_a_valid_schedule(start: Transport, transport: Transport) -> None:
    model, hardware = load_model(AFD.model), load_hardware("a3-752t")
    changed = with_transport(with_transport(AFD, start), transport)
    validate_schedule(changed, model, hardware)
    assert changed.deployment.afd is not None
    assert changed.deployment.afd.transport == transport
    assert len(changed.prefetch) == len(AFD.prefetch)


def test_the_routers_prefetch_goes_where_the_router_is() -> None:
    moved = {
        (p.role, p.weight, p.after)
        for p in set(with_transport(AFD, "direct").prefetch) - set(AFD.prefetch)
    }
    assert moved == {
        (None, "moe.router", "attention.0.o_proj"),
        ("ffn", "moe.w2", "afd.recv"),
    }


def test_limits_of_transfers_stay_only_where_they_hold_cores() -> None:
    camp2p = with_transport(AFD, "camp2p")
    stages = tuple(
        replace(stage, streams={**stage.streams, "link": CoreLimit(aiv=4)})
        for stage in camp2p.stages
    )
    limited = replace(camp2p, stages=stages)
    assert with_transport(limited, "direct").stages == stages
    assert with_transport(limited, "sdma_pairs").stages == AFD.stages


def test_a_colocated_schedule_has_no_transport_to_change() -> None:
    colocated = load_schedule("recipe_colocated")
    assert with_transport(colocated, "direct") == colocated


def test_a_space_that_names_the_router_stays_usable_without_it() -> None:
    direct = with_transport(AFD, "direct").deployment
    assert present_op(direct, "ffn", "moe.router_matmul") == "afd.recv"
    assert present_op(direct, "ffn", "moe.gmm1") == "moe.gmm1"
    assert present_op(AFD.deployment, "attention", "moe.topk") == "attention.0.post_norm"


@pytest.mark.parametrize("transport", ["camp2p", "direct"])
def test_a_search_stays_on_the_transport_that_was_asked_for(transport: str, tmp_path: Path) -> None:
    arguments = [
        "scenario=afd",
        f"deployment.transport={transport}",
        "search.knobs.ratio.levels=[1,3]",
        "search.knobs.mla_1.levels=[1]",
        "search.knobs.mla_0.levels=[1]",
        "search.knobs.gate_up.levels=[1]",
        "search.knobs.down.levels=[1]",
        "search.knobs.router.levels=[1]",
        "search.knobs.w13.levels=[0.5]",
        "workers=1",
        "draws=0",
        f"output={tmp_path}",
    ]
    assert run("search", SearchConfig, main, arguments) == 0
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["feasible"] == found["candidates"] > 1
    for entry in [found["best"], *found["tie_set"]]:
        saved = load_schedule(str(tmp_path / entry["schedule"]))
        assert saved.deployment.afd is not None
        assert saved.deployment.afd.transport == transport
