"""The recipe's YAML: the published files, keys kept, schedules kept, wrong files refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InfeasibleError, InputError
from hardware_models.hardware import load_hardware
from hardware_models.yaml_io import parse_yaml
from twin.deployment import Afd
from twin.launch.beside import Beside, beside_of
from twin.launch.differences import differences
from twin.launch.export import export_recipe
from twin.launch.recipe import import_recipe, recipe_yaml
from twin.launch.spelling import spelled
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import with_core_split, with_dies, with_ratio

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
BESIDE = Beside(model="longcat-flash-560b", hardware="a3-752t", quantisation="w8a8", kv_tokens=4608)


def published(*, afd: bool = False, **changes: object) -> dict[str, Any]:
    """The recipe's EP128 colocated or EP64 AFD file; changes go where their key stands."""
    data: dict[str, Any] = {
        "model_config": {
            "model_name": "longcat_flash",
            "model_path": "/data/LongCat-Flash",
            "with_ckpt": True,
            "exe_mode": "ge_graph",
            "enable_profiler": False,
            "force_eplb": True,
            "enable_cache_compile": True,
            "next_n": 2,
            "custom_params": {
                "enable_mla_prolog": True,
                "enable_multi_streams": 1,
                "enable_prefetch": True,
                "enable_superkernel": True,
                "enable_afd": afd,
                "moe_chunk_max_len": 1024,
            },
        },
        "data_config": {"dataset": "default", "input_truncated_len": 4096},
        "scheduler_config": {
            "block_size": 128,
            "max_new_tokens": 32,
            "batch_size": 256 if afd else 512,
            "mem_fraction_static": 0.85,
        },
        "parallel_config": {
            "world_size": 128,
            "attn_tp_size": 1,
            "dense_tp_size": 8,
            "moe_tp_size": 1,
            "embed_tp_size": 1,
            "lmhead_tp_size": 16,
            "o_proj_tp_size": 8,
            "cp_size": 1,
        },
    }
    for key, value in changes.items():
        custom = data["model_config"]["custom_params"]
        places = [custom, *data.values()]
        next((p for p in places if key in p), custom)[key] = value
    return data


def imported(data: dict[str, Any], beside: Beside = BESIDE) -> Schedule:
    return import_recipe(recipe_yaml(data), "file.yaml", beside).schedule


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (published(), "recipe_colocated"),
        (published(afd=True), "recipe_afd"),
        (published(enable_multi_streams=2), "recipe_colocated_c12v24"),
    ],
)
def test_published_files_are_the_shipped_schedules(
    data: dict[str, Any], name: str, tmp_path: Path
) -> None:
    schedule = imported(data)
    assert schedule == load_schedule(name)
    path = tmp_path / "kept.yaml"
    path.write_text(recipe_yaml(data))
    kept = export_recipe(schedule, MODEL, str(path))
    assert parse_yaml(kept.text, "x") == data
    assert not differences(schedule, kept.nearest)


def test_without_a_kept_file_every_key_is_written_with_the_schedules_values() -> None:
    def flat(data: Any, prefix: str = "") -> dict[str, object]:
        items = ((f"{prefix}{key}", value) for key, value in data.items())
        pairs = [flat(v, f"{k}.").items() if isinstance(v, dict) else [(k, v)] for k, v in items]
        return {key: value for group in pairs for key, value in group}

    data = published(afd=True)
    written = flat(parse_yaml(export_recipe(imported(data), MODEL).text, "x"))
    asked = flat(data)
    assert set(asked) <= set(written)
    free = {
        "model_config.model_path",
        "data_config.input_truncated_len",
        "scheduler_config.max_new_tokens",
    }
    assert {k: written[k] for k in asked if k not in free} == {
        k: v for k, v in asked.items() if k not in free
    }


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Legal files; keys whose value is that of an absent one may be absent."""
    mode = draw(st.sampled_from(["eager", "ge_graph", "npugraph_ex"]))
    afd = mode != "eager" and draw(st.booleans())
    streams = 0 if mode == "eager" else draw(st.sampled_from([1, 2] if afd else [0, 1, 2]))
    dies = draw(st.sampled_from([64, 128, 256]))
    tp = draw(st.sampled_from([1, 1, 2, 8]))
    batch = dies // (2 if afd else 1) // tp * draw(st.integers(1, 4))
    data = published(
        afd=afd,
        exe_mode=mode,
        enable_multi_streams=streams,
        enable_prefetch=streams > 0 and draw(st.booleans()),
        enable_superkernel=mode == "ge_graph" and draw(st.booleans()),
        force_eplb=draw(st.booleans()),
        next_n=draw(st.integers(0, 2)),
        batch_size=batch,
        world_size=dies,
        attn_tp_size=tp,
        o_proj_tp_size=tp if tp > 1 else draw(st.sampled_from([1, 4, 8])),
        dense_tp_size=draw(st.sampled_from([1, 8])),
        embed_tp_size=draw(st.sampled_from([1, 2])),
    )
    defaults = {"attn_tp_size": 1, "dense_tp_size": 1, "embed_tp_size": 1, "moe_tp_size": 1}
    defaults |= {"enable_prefetch": False, "enable_superkernel": False, "next_n": 0}
    for section in (*data.values(), data["model_config"]["custom_params"]):
        for key in list(section):
            optional = key not in ("exe_mode", "batch_size", "world_size", "custom_params")
            is_default = key not in DECIDED or (key in defaults and section[key] == defaults[key])
            if optional and is_default and draw(st.booleans()):
                del section[key]
    return data


DECIDED = {
    *("next_n", "force_eplb", "enable_multi_streams", "enable_prefetch", "enable_superkernel"),
    *("enable_afd", "attn_tp_size", "dense_tp_size", "moe_tp_size", "embed_tp_size"),
    *("lmhead_tp_size", "o_proj_tp_size"),
}


@given(files())
def test_a_file_comes_back_with_its_keys(tmp_path_factory: Any, data: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("kept") / "kept.yaml"
    path.write_text(recipe_yaml(data))
    exported = export_recipe(imported(data), MODEL, str(path))
    assert parse_yaml(exported.text, "x") == data


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Schedules near the shipped ones, most of them beyond what the recipe can say."""
    name = draw(st.sampled_from(["recipe_afd", "recipe_colocated", "recipe_colocated_c12v24"]))
    schedule = load_schedule(name)
    if draw(st.booleans()):
        schedule = replace(schedule, prefetch=schedule.prefetch[draw(st.integers(0, 12)) :])
    if draw(st.booleans()):
        schedule = replace(schedule, super_kernel=())
    if schedule.deployment.is_afd:
        schedule = with_ratio(schedule, draw(st.sampled_from([1, 1, 3, 7])))
        parts = draw(st.sampled_from([1, 1, 2]))
        deployment = replace(schedule.deployment, afd=Afd(micro_batches=parts))
        schedule = replace(schedule, deployment=deployment)
    elif draw(st.booleans()):
        schedule = with_core_split(schedule, "stage2", draw(st.integers(8, 20)), HARDWARE)
    next_n = draw(st.integers(0, 2))
    workload = replace(
        schedule.workload,
        global_batch=draw(st.sampled_from([256, 384, 500, 512])),
        next_n=next_n,
        acceptance=next_n * 0.5,
        expert_load=draw(st.sampled_from(["balanced", "uniform"])),
    )
    schedule = replace(schedule, workload=workload)
    if draw(st.sampled_from([False, False, True])):
        stages = tuple(replace(s, name=f"part{i}") for i, s in enumerate(schedule.stages))
        schedule = replace(schedule, stages=stages, super_kernel=())
    return schedule


@given(schedules())
def test_a_schedule_comes_back_unless_something_was_listed(schedule: Schedule) -> None:
    exported = export_recipe(schedule, MODEL)
    back = imported(parse_yaml(exported.text, "x"), beside_of(schedule))  # type: ignore[arg-type]
    assert back == exported.nearest
    found = differences(schedule, exported.nearest)
    assert (not found) == (back == schedule)
    for difference in found:
        schedule = difference.apply(schedule)
    assert schedule == back
    assert spelled(back) == back


def _listed(schedule: Schedule) -> dict[str, tuple[str, str]]:
    exported = export_recipe(schedule, MODEL)
    return {d.part: (d.asked, d.nearest) for d in differences(schedule, exported.nearest)}


def test_what_cannot_be_said_is_listed_with_the_nearest_choice() -> None:
    afd, colocated = load_schedule("recipe_afd"), load_schedule("recipe_colocated")
    other = replace(afd.deployment, afd=Afd(micro_batches=2))
    found = _listed(with_ratio(replace(afd, deployment=other), 3))
    assert found["deployment.roles"] == ("96 attention + 32 ffn", "64 attention + 64 ffn")
    assert found["deployment.afd.micro_batches"] == ("2", "1")
    found = _listed(with_core_split(colocated, "stage2", 18, HARDWARE))
    assert list(found) == ["stages"]
    assert "c18v36" in found["stages"][0]
    assert "c16v32" in found["stages"][1]
    assert "c12v24" in _listed(with_core_split(colocated, "stage2", 13, HARDWARE))["stages"][1]
    workload = replace(colocated.workload, global_batch=500)
    assert _listed(replace(colocated, workload=workload)) == {
        "workload.global_batch": ("500", "512")
    }
    small = replace(colocated.prefetch[0], bytes=1024)
    found = _listed(replace(colocated, prefetch=(small, *colocated.prefetch[1:])))
    assert found["prefetch"][0].startswith("moe.router 0.0009766 MiB")
    assert found["prefetch"][1].startswith("moe.router 18 MiB")
    found = _listed(replace(colocated, prefetch=(small,)))
    assert found["prefetch"][1] == "none"


def test_dies_that_the_experts_do_not_divide_over_stay_unused() -> None:
    afd = load_schedule("recipe_afd")
    workload = replace(afd.workload, global_batch=384)
    found = _listed(with_ratio(with_dies(replace(afd, workload=workload), 192), 2))
    assert found["deployment.roles"] == ("128 attention + 64 ffn", "64 attention + 64 ffn")


def test_no_legal_file_near_is_said() -> None:
    colocated = load_schedule("recipe_colocated")
    workload = replace(colocated.workload, global_batch=1)
    with pytest.raises(InfeasibleError, match="no split of 128 dies"):
        export_recipe(replace(colocated, workload=workload), MODEL)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"enable_magic": True}, "model_config.custom_params.enable_magic"),
        ({"exe_mode": "graph"}, "model_config.exe_mode"),
        ({"next_n": 3}, "model_config.next_n"),
        ({"next_n": True}, "model_config.next_n"),
        ({"next_n": "2"}, "model_config.next_n"),
        ({"enable_multi_streams": 3}, "model_config.custom_params.enable_multi_streams"),
        ({"enable_multi_streams": True}, "model_config.custom_params.enable_multi_streams"),
        ({"enable_multi_streams": 0}, "model_config.custom_params.enable_prefetch"),
        ({"enable_prefetch": 1}, "model_config.custom_params.enable_prefetch"),
        ({"exe_mode": "eager"}, "model_config.custom_params.enable_multi_streams"),
        ({"exe_mode": "npugraph_ex"}, "model_config.custom_params.enable_superkernel"),
        ({"moe_chunk_max_len": 0}, "model_config.custom_params.moe_chunk_max_len"),
        ({"batch_size": 500}, "scheduler_config.batch_size"),
        ({"batch_size": 0}, "scheduler_config.batch_size"),
        ({"batch_size": 128000}, "scheduler_config.batch_size"),
        ({"batch_size": 1.5}, "scheduler_config.batch_size"),
        ({"mem_fraction_static": 1.1}, "scheduler_config.mem_fraction_static"),
        ({"world_size": 0}, "parallel_config.world_size"),
        ({"world_size": 96, "batch_size": 480, "lmhead_tp_size": 8}, "parallel_config.world_size"),
        ({"dense_tp_size": 7}, "parallel_config.dense_tp_size"),
        ({"moe_tp_size": 2}, "parallel_config.moe_tp_size"),
        ({"attn_tp_size": 4}, "parallel_config.o_proj_tp_size"),
        ({"lmhead_tp_size": -1}, "parallel_config.lmhead_tp_size"),
    ],
)
def test_wrong_files_name_file_key_and_value(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        imported(published(**changes))  # type: ignore[arg-type]
    assert caught.value.source == "file.yaml"
    assert caught.value.field == field


def test_afd_has_rules_of_its_own() -> None:
    for changes, field in (
        ({"world_size": 127}, "parallel_config.world_size"),
        (
            {"enable_multi_streams": 0, "enable_prefetch": False},
            "model_config.custom_params.enable_multi_streams",
        ),
    ):
        with pytest.raises(InputError) as caught:
            imported(published(afd=True, **changes))
        assert caught.value.field == field


@pytest.mark.parametrize("missing", ["model_config", "parallel_config", "scheduler_config"])
def test_a_missing_section_is_named(missing: str) -> None:
    data = published()
    del data[missing]
    with pytest.raises(InputError, match=missing):
        imported(data)


def test_what_a_schedule_has_no_field_for_is_said() -> None:
    text = recipe_yaml(published(enable_mla_prolog=False, cp_size=2))
    notes = import_recipe(text, "f", BESIDE).not_modelled
    assert [note.partition(":")[0] for note in notes] == ["enable_mla_prolog", "cp_size"]
