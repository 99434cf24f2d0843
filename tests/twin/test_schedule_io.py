"""Schedule files: any valid schedule survives the file, any file gives a schedule or an error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.deployment import Afd, Deployment, Role, RoleDeployment
from twin.models import load_model
from twin.names import (
    consumer,
    layer_chains,
    layer_weights,
    main_ops,
    outside_weights,
)
from twin.schedule import CoreLimit, MoePlan, Prefetch, Schedule, Stage
from twin.schedule_io import (
    dump_schedule,
    load_schedule,
    parse_schedule,
    save_schedule,
    shipped_schedules,
)
from twin.validate import validate_schedule
from twin.workload import Workload

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
POWERS = (1, 2, 4, 8, 16)


@st.composite
def roles(draw: st.DrawFn) -> dict[Role, RoleDeployment]:
    """Either layout, every group size a power of two that divides its role's dies."""
    ffn = draw(st.sampled_from((16, 32, 64)))
    is_afd = draw(st.booleans())
    dies = ffn * draw(st.integers(1, 3)) if is_afd else ffn
    sizes = {
        name: draw(st.sampled_from(POWERS))
        for name in ("o_proj_tp", "dense_tp", "lm_head_tp", "embed_tp")
    }
    if not is_afd:
        return {"colocated": RoleDeployment(dies=dies, ep=dies, **sizes)}
    attention = RoleDeployment(dies=dies, **sizes)
    both: list[tuple[Role, RoleDeployment]] = [
        ("attention", attention),
        ("ffn", RoleDeployment(dies=ffn, ep=ffn)),
    ]
    return dict(draw(st.permutations(both)))


@st.composite
def limits(draw: st.DrawFn, streams: int) -> list[CoreLimit]:
    """Core limits of so many streams that fit one die together, or none."""
    if draw(st.booleans()):
        return [CoreLimit()] * streams
    aic = draw(st.integers(streams, 24)) // streams
    aiv = draw(st.integers(16 * streams, 48)) // streams
    return [CoreLimit(aic=aic, aiv=draw(st.sampled_from((aiv, None))))] + [
        CoreLimit(aic=aic, aiv=aiv)
    ] * (streams - 1)


@st.composite
def stages(draw: st.DrawFn, deployment: Deployment) -> tuple[Stage, ...]:
    is_eager = deployment.graph_mode == "eager"
    if deployment.is_afd:
        linked = []
        both: tuple[Role, ...] = ("attention", "ffn")
        for role in draw(st.permutations(both)):
            main = CoreLimit() if is_eager else draw(limits(1))[0]
            streams = {"link": CoreLimit(), "main": main}
            join = "add" if role == "attention" else None
            linked.append(Stage(name=f"{role}-side", role=role, streams=streams, join=join))
        return tuple(linked)
    has_moe = not is_eager and draw(st.booleans())
    names = ("main", "moe") if has_moe else ("main",)
    cores = [CoreLimit()] if is_eager else draw(limits(len(names)))
    last = Stage(
        name="2",
        streams=dict(zip(names, cores, strict=True)),
        join="add" if has_moe else None,
    )
    if draw(st.booleans()):
        return (last,)
    ends = draw(st.sampled_from(main_ops(deployment, "colocated")[:-1]))
    first = CoreLimit() if is_eager else draw(limits(1))[0]
    return (Stage(name="null", streams={"main": first}, ends_after=ends), last)


@st.composite
def prefetches(
    draw: st.DrawFn, deployment: Deployment, parts: tuple[Stage, ...], next_n: int
) -> tuple[Prefetch, ...]:
    """Some weights of some role, each behind an op before its reader or for the next layer."""
    role = draw(st.sampled_from(sorted(deployment.roles)))
    is_default = role != "ffn"
    moe_apart = any("moe" in stage.streams for stage in parts)
    chains = layer_chains(deployment, role, moe_apart=moe_apart)
    every = (*layer_weights(deployment, role), *outside_weights(role, next_n))
    found = []
    for weight in draw(st.lists(st.sampled_from(every), unique=True, max_size=6)):
        chain = draw(st.sampled_from(chains))
        reader = consumer(weight)
        is_layer = weight in layer_weights(deployment, role)
        before = chain[: chain.index(reader)] if is_layer and reader in chain else ()
        if is_layer and (not before or draw(st.booleans())):
            name, after = f"next.{weight}", draw(st.sampled_from(chain))
        else:
            name, after = weight, draw(st.sampled_from(before or chain))
        issuer = draw(st.sampled_from((None, role))) if is_default else role
        size = draw(st.integers(1, 2**40))
        found.append(Prefetch(weight=name, after=after, bytes=size, role=issuer))
    return tuple(found)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    layout = draw(roles())
    sequences = draw(st.integers(1, 8))
    afd = Afd(micro_batches=draw(st.integers(1, sequences))) if "ffn" in layout else None
    deployment = Deployment(
        hardware="a3-752t",
        quantisation=draw(st.sampled_from(("bf16", "w8a8", "fp32"))),
        graph_mode=draw(st.sampled_from(("eager", "ge_graph", "npugraph_ex"))),
        roles=layout,
        afd=afd,
    )
    dies = deployment.attention.dies
    padding = draw(st.integers(0, dies - 1)) if sequences > 1 else 0
    next_n = draw(st.integers(0, 2))
    chosen = draw(stages(deployment))
    is_eager = deployment.graph_mode == "eager"
    scopes: list[str] = []
    if deployment.graph_mode == "ge_graph":
        legal = [f"{s.name}.{n}" for s in chosen for n in s.streams if n != "link"]
        scopes = draw(st.lists(st.sampled_from(legal), unique=True))
    return Schedule(
        format=1,
        model="longcat-flash-560b",
        workload=Workload(
            phase="decode",
            global_batch=dies * sequences - padding,
            kv_tokens=draw(st.integers(1, 100_000)),
            next_n=next_n,
            acceptance=draw(st.floats(0, next_n) | st.integers(0, next_n)),
            expert_load=draw(st.sampled_from(("balanced", "uniform"))),
        ),
        deployment=deployment,
        stages=chosen,
        prefetch=() if is_eager else draw(prefetches(deployment, chosen, next_n)),
        super_kernel=tuple(scopes),
        moe=MoePlan(redundant_experts=draw(st.sampled_from((0, 64, 128)))),
    )


@given(schedules())
def test_any_valid_schedule_survives_its_file(schedule: Schedule) -> None:
    validate_schedule(schedule, MODEL, HARDWARE)
    text = dump_schedule(schedule)
    again = parse_schedule(text, "again.yaml")
    assert again == schedule
    assert dump_schedule(again) == text
    # Other YAML readers see the same content.
    assert set(yaml.safe_load(text)) >= {"format", "model", "workload", "deployment", "stages"}


def test_equal_schedules_give_equal_bytes_whatever_order_they_were_made_in(tmp_path: Path) -> None:
    schedule = load_schedule("recipe_afd")
    shuffled = yaml.safe_load(dump_schedule(schedule))
    for path in (shuffled["deployment"]["roles"], shuffled["stages"][0]["streams"]):
        for key in sorted(path):
            path[key] = path.pop(key)
    file = tmp_path / "new" / "schedule.yaml"
    save_schedule(parse_schedule(yaml.safe_dump(shuffled), "shuffled.yaml"), file)
    assert file.read_text("utf-8") == dump_schedule(schedule)
    assert load_schedule(str(file)) == schedule


def test_files_are_written_like_the_documented_example() -> None:
    lines = dump_schedule(load_schedule("recipe_colocated")).splitlines()
    assert lines[:3] == [
        "format: 1",
        "model: longcat-flash-560b",
        "workload: {phase: decode, global_batch: 512, kv_tokens: 4608, next_n: 2, "
        "acceptance: 1.15, expert_load: balanced}",
    ]
    assert "- {weight: dense.0.gate_up, after: attention.0.o_proj, bytes: 18874368}" in lines
    assert "super_kernel: [stage1, stage2.main, stage2.moe]" in lines
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("global_batch: 512", "global_batch: 100", "workload.global_batch"),
        ("model: longcat-flash-560b", "model: gpt", "model"),
        ("hardware: a3-752t", "hardware: h100", "hardware"),
        ("aic: 16", "aic: 25", "stages[1].streams.main.aic"),
    ],
)
def test_loading_names_the_file_of_a_broken_rule(
    tmp_path: Path, old: str, new: str, field: str
) -> None:
    text = dump_schedule(load_schedule("recipe_colocated"))
    assert old in text
    path = tmp_path / "my.yaml"
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(InputError) as caught:
        load_schedule(str(path))
    assert (caught.value.source, caught.value.field) == (str(path), field)


def test_a_fault_in_the_models_own_file_names_that_file(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    path = tmp_path / "my.yaml"
    text = dump_schedule(load_schedule("recipe_colocated"))
    path.write_text(text.replace("model: longcat-flash-560b", f"model: {config}"), "utf-8")
    with pytest.raises(InputError) as caught:
        load_schedule(str(path))
    assert (caught.value.source, caught.value.field) == (str(config), "model_type")


@pytest.mark.parametrize("name", ["", "no/such.yaml", "a\0b", "x" * 5000, "."])
def test_what_is_no_schedule_lists_the_shipped_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_schedule(name)
    assert caught.value.field == "schedule"
    assert all(shipped in caught.value.allowed for shipped in shipped_schedules())


PLAIN = {name: yaml.safe_load(dump_schedule(load_schedule(name))) for name in shipped_schedules()}
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["add", "main", "moe.w2", "ffn", "next.lm_head", "stage1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(data=st.data(), name=st.sampled_from(shipped_schedules()))
def test_no_file_gives_anything_but_a_schedule_or_an_input_error(
    data: st.DataObject, name: str
) -> None:
    tree: Any = copy.deepcopy(PLAIN[name])
    for _ in range(data.draw(st.integers(1, 4))):
        node = tree
        while True:
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            action = data.draw(st.sampled_from(("into", "into", "change", "delete", "add")))
            if action == "add" and isinstance(node, dict):
                node[data.draw(st.text(max_size=6))] = data.draw(JUNK)
                break
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if action == "into" and isinstance(node[key], dict | list):
                node = node[key]
                continue
            if action == "delete":
                del node[key]
            elif action == "add":
                node.append(copy.deepcopy(node[key]))
            else:
                node[key] = data.draw(JUNK)
            break
    try:
        schedule = parse_schedule(yaml.safe_dump(tree, allow_unicode=False), "fuzz.yaml")
        model = load_model(schedule.model)
        validate_schedule(schedule, model, HARDWARE)
    except InputError:
        return
    assert parse_schedule(dump_schedule(schedule), "again.yaml") == schedule


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_text_gives_anything_but_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_schedule(text, "text.yaml")
