"""Spaces: what an index stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from twin.models import load_model
from twin.schedule import Prefetch, Schedule
from twin.schedule_io import load_schedule
from twin.search.changes import present_op, with_core_split, with_dies, with_ratio, with_sizes
from twin.search.config import Knob
from twin.search.feasible import rejection
from twin.search.space import Space
from twin.search.transport import with_transport
from twin.weights import weight_bytes
from twin.workload import chance_of

MODEL = load_model("longcat-flash-560b")
HARDWARE = load_hardware("a3-752t")
COLOCATED = load_schedule("recipe_colocated")
AFD = load_schedule("recipe_afd")

CORES = Knob(drives="cores", levels=(12, 16), stage="stage2")
DENSE = Knob(
    drives="prefetch",
    levels=(0, 0.5, 1),
    weights={"dense.0.gate_up": "attention.0.o_proj", "dense.1.down": "dense.1.all_gather"},
)
PLACE = Knob(
    drives="place", levels=("attention.0.uv",), weights={"dense.0.gate_up": "attention.0.o_proj"}
)
SIZES = Knob(drives="sizes", levels=(1, 2), sizes=("o_proj_tp", "lm_head_tp"))
BATCH = Knob(drives="batch", levels=(128, 256))
RATIO = Knob(drives="ratio", levels=(1, 2, 3))
PARTS = Knob(drives="micro_batches", levels=(1, 2))


def space(base: Schedule, dies: tuple[int, ...] = (), **knobs: Knob) -> Space:
    return Space(base, MODEL, HARDWARE, knobs, dies)


def test_every_index_is_another_choice_and_the_first_knob_varies_slowest() -> None:
    made = space(COLOCATED, cores=CORES, dense=DENSE)
    assert made.size == 6
    choices = [made.choice(i) for i in range(made.size)]
    assert len({tuple(c.items()) for c in choices}) == 6
    assert [c["cores"] for c in choices] == [12, 12, 12, 16, 16, 16]
    assert [c["dense"] for c in choices[:3]] == [0, 0.5, 1]


def test_a_prefetch_knob_sets_the_share_of_each_weight_and_nothing_else() -> None:
    made = space(COLOCATED, dense=DENSE)
    sizes = [{p.weight: p.bytes for p in made.schedule(i).prefetch} for i in range(3)]
    assert "dense.0.gate_up" not in sizes[0]
    assert sizes[1]["dense.0.gate_up"] == 18874368 // 2
    assert sizes[2]["dense.1.down"] == 9437184
    untouched = {p.weight: p.bytes for p in COLOCATED.prefetch}
    assert sizes[0]["moe.router"] == untouched["moe.router"]
    assert len(sizes[0]) == len(untouched) - 2


def test_a_prefetch_that_the_base_lacks_is_added_behind_its_op() -> None:
    knob = Knob(drives="prefetch", levels=(1,), weights={"attention.1.uk": "dense.0.gate_up"})
    added = space(COLOCATED, uk=knob).schedule(0).prefetch[-1]
    assert (added.weight, added.after, added.bytes) == (
        "attention.1.uk",
        "dense.0.gate_up",
        1 << 23,
    )


def test_cores_of_both_streams_add_up_to_the_die() -> None:
    streams = with_core_split(COLOCATED, "stage2", 18, HARDWARE).stages[1].streams
    assert (streams["main"].aic, streams["main"].aiv) == (18, 36)
    assert (streams["moe"].aic, streams["moe"].aiv) == (6, 12)
    with pytest.raises(InputError, match="stage9"):
        with_core_split(COLOCATED, "stage9", 18, HARDWARE)


def test_a_ratio_keeps_dies_and_batch_and_sizes_the_experts() -> None:
    made = with_ratio(AFD, 3)
    roles = made.deployment.roles
    assert (roles["attention"].dies, roles["ffn"].dies, roles["ffn"].ep) == (96, 32, 32)
    assert made.workload == AFD.workload
    w2 = {p.weight: p.bytes for p in made.prefetch}["moe.w2"]
    assert w2 == 2 * {p.weight: p.bytes for p in AFD.prefetch}["moe.w2"]


SPLITS = ("attention_tp", "o_proj_tp", "dense_tp")


def share(schedule: Schedule, prefetch: Prefetch) -> float:
    weight = prefetch.weight.removeprefix("next.")
    redundant = schedule.moe.redundant_experts
    return prefetch.bytes / weight_bytes(MODEL, schedule.deployment, weight, redundant)


@given(
    st.sampled_from([COLOCATED, AFD]),
    st.sampled_from([64, 128, 256]),
    st.dictionaries(st.sampled_from(SPLITS), st.sampled_from([1, 2, 4, 8])),
)
def test_a_prefetch_keeps_its_share_of_a_weight_that_is_split_anew(
    base: Schedule, dies: int, sizes: dict[str, int]
) -> None:
    weights = ("attention.1.q_a", "next.attention.0.q_b", "attention.0.o_proj", "dense.0.gate_up")
    weights += ("dense.1.down", "moe.w2", "next.moe.w13", "attention.0.uk", "attention.0.uv")
    whole = replace(
        base,
        moe=replace(base.moe, redundant_experts=0),
        prefetch=tuple(Prefetch(weight=w, after="add", bytes=2**20) for w in weights),
    )
    made = with_sizes(with_dies(whole, dies), sizes)
    for was, now in zip(whole.prefetch, made.prefetch, strict=True):
        assert share(made, now) == pytest.approx(share(whole, was), rel=1e-5)


def test_a_ratio_that_does_not_divide_is_a_named_rejection() -> None:
    with pytest.raises(InputError, match="2:1"):
        with_ratio(AFD, 2)


def test_dies_are_a_knob_when_several_are_listed() -> None:
    made = space(COLOCATED, (64, 128), cores=CORES)
    assert made.size == 4
    assert made.schedule(0).deployment.total_dies == 64
    assert made.schedule(0).deployment.moe.ep == 64
    assert with_dies(AFD, 64).deployment.roles["ffn"].dies == 32


def test_memory_rejections_say_by_how_much() -> None:
    workload = replace(COLOCATED.workload, global_batch=512, next_n=0, acceptance=0.0)
    role = replace(COLOCATED.deployment.attention, lm_head_tp=8)
    deployment = replace(COLOCATED.deployment, roles={"colocated": role})
    small = with_dies(replace(COLOCATED, workload=workload, deployment=deployment), 8)
    out = rejection(small, MODEL, HARDWARE)
    assert out is not None
    assert "memory of a colocated die" in out.reason
    assert "GiB too much" in out.detail
    assert out.excess > 0


def test_rule_rejections_name_the_field() -> None:
    made = space(COLOCATED, cores=replace(CORES, levels=(20,)))
    out = rejection(made.schedule(0), MODEL, HARDWARE)
    assert out is None
    parts = space(AFD, parts=replace(PARTS, levels=(64,)))
    refused = rejection(parts.schedule(0), MODEL, HARDWARE)
    assert refused is not None
    assert "micro_batches" in refused.reason


@pytest.mark.parametrize(
    ("knob", "named"),
    [
        (replace(DENSE, levels=()), "levels"),
        (replace(DENSE, levels=(0, 0)), "levels"),
        (replace(DENSE, levels=(1.5,)), "levels"),
        (replace(DENSE, weights=None), "weights"),
        (replace(CORES, stage=None), "stage"),
        (replace(RATIO, levels=(1.5,)), "levels"),
    ],
)
def test_a_senseless_knob_is_refused_by_its_key(knob: Knob, named: str) -> None:
    with pytest.raises(InputError, match=f"search.knobs.mine.{named}"):
        knob.check("mine")


def test_an_op_that_a_deployment_lacks_gives_way_to_the_one_before_it() -> None:
    tiny = load_schedule("tiny_colocated").deployment
    assert present_op(tiny, "colocated", "dense.1.all_gather") == "attention.1.post_norm"
    assert present_op(tiny, "colocated", "dense.1.down") == "dense.1.down"
    assert present_op(tiny, "colocated", "no.such.op") == "no.such.op"
    assert present_op(tiny, "colocated", "attention.1.merge") == "attention.1.uv"
    assert present_op(tiny, "colocated", "attention.1.all_gather") == "attention.1.input_norm"
    long = load_schedule("recipe_long_context").deployment
    assert present_op(long, "colocated", "dense.1.all_gather") == "attention.1.post_norm"
    assert present_op(long, "colocated", "dense.1.reduce_scatter") == "dense.1.down"


@pytest.mark.parametrize(
    ("base", "knob", "named"),
    [
        (AFD, CORES, "mine.stage"),
        (COLOCATED, RATIO, "mine.drives"),
        (COLOCATED, PARTS, "mine.drives"),
        (COLOCATED, replace(DENSE, role="ffn"), "mine.role"),
    ],
)
def test_a_knob_of_the_other_kind_is_wrong_input(base: Schedule, knob: Knob, named: str) -> None:
    with pytest.raises(InputError, match=named):
        space(base, mine=knob).check()
    space(COLOCATED, cores=CORES, dense=DENSE).check()
    space(AFD, ratio=RATIO, parts=PARTS).check()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"first": DENSE, "second": replace(DENSE, levels=(1,))}, "first drives already: dense"),
        ({"first": DENSE, "second": replace(DENSE, role="colocated")}, "first drives already"),
        ({"first": CORES, "second": CORES}, "first drives already: stage2"),
        ({"first": replace(CORES, drives="vector_cores"), "second": CORES}, "before the vector"),
        ({"first": PLACE, "second": DENSE}, "before the place knob of dense.0.gate_up"),
        ({"first": SIZES, "second": replace(SIZES, sizes=("lm_head_tp",))}, "already: lm_head_tp"),
        ({"first": BATCH, "second": BATCH}, "first drives already: batch"),
    ],
)
def test_knobs_that_undo_each_other_are_refused(knobs: dict[str, Knob], message: str) -> None:
    with pytest.raises(InputError, match=message):
        space(COLOCATED, **knobs).check()


def test_a_weight_that_no_die_of_the_role_holds_is_refused() -> None:
    knob = Knob(drives="prefetch", levels=(1,), weights={"dense.0.gate_op": "attention.0.o_proj"})
    with pytest.raises(InputError, match=r"dense.0.gate_op.*allowed.*dense.0.gate_up"):
        space(COLOCATED, typo=knob).check()


def test_a_weight_that_another_transport_moves_away_is_left_out() -> None:
    knob = Knob(drives="prefetch", role="ffn", levels=(1,), weights={"moe.router": "moe.gmm2"})
    direct = space(with_transport(AFD, "direct"), router=knob)
    direct.check()
    assert "moe.router" not in [p.weight for p in direct.schedule(0).prefetch if p.role == "ffn"]


def test_every_new_knob_changes_what_it_says() -> None:
    vectors = Knob(drives="vector_cores", stage="stage2", levels=(24,))
    limits = space(COLOCATED, cores=CORES, vectors=vectors).schedule(0).stages[1].streams
    assert [(limits[n].aic, limits[n].aiv) for n in ("main", "moe")] == [(12, 24), (12, 24)]
    scopes = space(COLOCATED, scopes=Knob(drives="super_kernel", levels=(0, 1)))
    assert scopes.schedule(0).super_kernel == ()
    assert scopes.schedule(1) == COLOCATED
    batch = space(COLOCATED, batch=Knob(drives="batch", levels=(128,))).schedule(0)
    assert batch.workload.global_batch == 128
    sent = space(AFD, by=Knob(drives="transport", levels=("camp2p",))).schedule(0)
    assert sent.deployment.afd is not None
    assert sent.deployment.afd.transport == "camp2p"
    place = Knob(
        drives="place", levels=("dense.0.swiglu",), weights={"attention.1.q_b": "dense.0.gate_up"}
    )
    moved = {p.weight: p.after for p in space(COLOCATED, place=place).schedule(0).prefetch}
    before = {p.weight: p.after for p in COLOCATED.prefetch}
    assert {w for w in moved if moved[w] != before[w]} == {"attention.1.q_b"}
    assert moved["attention.1.q_b"] == "dense.0.swiglu"


@pytest.mark.parametrize(
    ("knob", "name"),
    [
        (replace(RATIO, stage="stage2"), "stage"),
        (replace(BATCH, weights={"dense.0.down": "attention.0.uv"}), "weights"),
        (replace(CORES, role="colocated"), "role"),
        (replace(DENSE, sizes=("o_proj_tp",)), "sizes"),
    ],
)
def test_companions_that_a_knob_has_no_use_for_are_refused(knob: Knob, name: str) -> None:
    with pytest.raises(InputError, match=rf"search.knobs.mine.{name}"):
        knob.check("mine")


def test_other_dies_keep_any_ratio_of_the_roles() -> None:
    uneven = with_dies(with_ratio(AFD, 3), 112)
    roles = {
        "attention": replace(uneven.deployment.roles["attention"], dies=80),
        "ffn": replace(uneven.deployment.roles["ffn"], dies=32, ep=32),
    }
    uneven = replace(uneven, deployment=replace(uneven.deployment, roles=roles))
    tripled = with_dies(uneven, 336).deployment.roles
    assert (tripled["attention"].dies, tripled["ffn"].dies) == (240, 96)
    with pytest.raises(InputError, match=r"5/2:1"):
        with_dies(uneven, 128)


def test_drafts_keep_the_chance_of_a_draft() -> None:
    workload = COLOCATED.workload
    chance = chance_of(workload.acceptance, workload.next_n)
    made = space(COLOCATED, drafts=Knob(drives="drafts", levels=(0, 1, 2)))
    for drafts in range(3):
        changed = made.schedule(drafts).workload
        assert changed.next_n == drafts
        assert changed.acceptance == pytest.approx(sum(chance**i for i in range(1, drafts + 1)))
    assert made.schedule(workload.next_n) == COLOCATED


def test_a_stage_can_end_elsewhere_and_a_place_that_no_stage_has_is_a_rejection() -> None:
    ends = Knob(drives="ends_after", stage="stage1", levels=("attention.0.o_proj", "nowhere"))
    made = space(COLOCATED, ends=ends)
    assert made.schedule(0).stages[0].ends_after == "attention.0.o_proj"
    out = rejection(made.schedule(1), MODEL, HARDWARE)
    assert out is not None
    assert "ends_after" in out.reason


@pytest.mark.parametrize("levels", [(3,), (-1,), (0.5,)])
def test_a_depth_that_mtp_does_not_have_is_wrong_input(levels: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match=r"search.knobs.deep.levels"):
        Knob(drives="drafts", levels=levels).check("deep")


def test_the_base_is_found_in_its_space_whatever_it_asks_beyond_a_weight() -> None:
    weights = {p.weight: p.after for p in AFD.prefetch if p.weight.startswith("attention.1.")}
    size = weight_bytes(MODEL, AFD.deployment, "attention.1.kv_a", 0)
    assert any(p.weight == "attention.1.kv_a" and p.bytes > size for p in AFD.prefetch)
    ratio = Knob(drives="ratio", levels=(1, 3))
    whole = Knob(drives="prefetch", levels=(0.5, 1), weights=weights)
    made = space(AFD, ratio=ratio, mla=whole)
    hits = [made.choice(i) for i in range(made.size) if made.is_base(i)]
    assert hits == [{"ratio": 1, "mla": 1}]
