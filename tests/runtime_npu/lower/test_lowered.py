"""The parts of lowering that need no wheel: forms, order, clocks, groups, the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import PREFILL, ROLE, SMALL, TWO_STREAMS, afd, direct, with_role

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.ops import MatMul, PrefetchWeight, QuantMatMul
from runtime_npu.backends import npu_order
from runtime_npu.backends.npu_order import GeOrder
from runtime_npu.lower.check import all_differences, group_of, partners
from runtime_npu.lower.groups import group_of_text, ranks_of_text
from runtime_npu.lower.listing import TITLE, listing, outside_and_first
from runtime_npu.lower.lowered import Clocks, LoweredOp, MixedError, one, peer_label, ranks_label
from runtime_npu.npu.forms import Forms, UnboundError, bind_weights
from runtime_npu.parallel.groups import graph_die, members, place_of
from runtime_npu.parallel.layout import Layout, last_rows
from runtime_npu.plan import prefill_order
from twin.graph.build import build_step_graph
from twin.graph.shapes import step_shapes
from twin.schedule import PrefillPlan

HARDWARE = load_hardware("a3-752t")
GRAPH = build_step_graph(TWO_STREAMS, SMALL, HARDWARE)


def planned() -> list[LoweredOp]:
    """What a perfect lowering of the graph would give for rank 1."""
    ops = []
    for op in GRAPH.ops:
        if op.die != 0:
            continue
        group = group_of(op.name)
        ranks = () if group is None else members(TWO_STREAMS.deployment, group, 1)
        size = int(op.spec.bytes) if isinstance(op.spec, PrefetchWeight) else 0
        ops.append(
            LoweredOp(
                name=op.name,
                calls=("Call",),
                glue=(),
                stream=op.stream,
                aic=op.limit.aic if op.limit else None,
                aiv=op.limit.aiv if op.limit else None,
                scope=op.scope,
                waits=tuple(GRAPH.ops[d].name for d in op.deps if GRAPH.ops[d].stream != op.stream),
                prefetch_bytes=size,
                group=ranks_label(ranks) if len(ranks) > 1 else None,
                shape=(op.spec.m, op.spec.n) if isinstance(op.spec, (MatMul, QuantMatMul)) else (),
            )
        )
    return ops


def differences(ops: list[LoweredOp]) -> tuple[str, ...]:
    records = [op.record() for op in planned()]
    return all_differences(ops, records, GRAPH, TWO_STREAMS.deployment, 1)


def test_a_perfect_lowering_has_no_difference() -> None:
    assert differences(planned()) == ()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("layer.0.moe.dispatch", {"aic": 24}),
        ("layer.1.moe.dispatch", {"aiv": None}),
        ("layer.0.moe.gmm1", {"stream": "main"}),
        ("layer.0.dense.0.down", {"scope": None}),
        ("layer.1.add", {"waits": ()}),
        ("layer.0.add", {"waits": ("layer.0.moe.combine", "layer.0.moe.gmm2")}),
        ("layer.0.prefetch.moe.router", {"prefetch_bytes": 999}),
        ("layer.0.prefetch.moe.router", {"waits": ("layer.0.attention.0.uv",)}),
        ("layer.0.moe.dispatch", {"group": "ranks 0-1"}),
        ("layer.0.attention.0.all_to_all", {"group": "ranks 2-3"}),
        ("layer.0.attention.0.uv", {"group": "ranks 0-1"}),
        ("lm_head", {"name": "head"}),
        ("layer.1.dense.0.down", {"shape": (1, 1024)}),
        ("layer.0.dense.0.swiglu", {"glue": ("Transpose", "Mul")}),
        ("layer.0.add", {"races": ("reads layer.0.moe.combine of moe too early",)}),
    ],
)
def test_every_wrong_attribute_is_a_difference(name: str, changed: dict[str, object]) -> None:
    ops = planned()
    place = next(i for i, op in enumerate(ops) if op.name == name)
    ops[place] = replace(ops[place], **changed)  # type: ignore[arg-type]
    assert differences(ops)


def test_a_missing_or_an_extra_op_is_a_difference() -> None:
    assert differences(planned()[:-1])
    assert differences([*planned(), replace(planned()[-1], name="more")])
    first, second, *rest = planned()
    assert differences([second, first, *rest])


def test_a_wait_that_another_implies_is_none() -> None:
    clocks = Clocks()
    assert clocks.issue("a", "main", []) == ()
    assert clocks.issue("b", "main", ["a"]) == ()
    assert clocks.issue("m1", "moe", ["a", "b"]) == ("b",)
    assert clocks.issue("m2", "moe", ["m1", "a"]) == ()
    assert clocks.issue("c", "main", ["m1"]) == ("m1",)
    assert clocks.issue("d", "main", ["m2", "m1"]) == ("m2",)
    # Through another stream: p knows of m2, because d does.
    assert clocks.issue("p", "prefetch", ["m2", "d"]) == ("d",)
    assert clocks.same_stream("a", "d")
    assert not clocks.same_stream("a", "m1")


def test_parts_of_an_op_must_agree() -> None:
    assert one("op", "streams", ["moe", "moe"]) == "moe"
    with pytest.raises(MixedError, match=r"op: streams are \['main', 'moe'\]"):
        one("op", "streams", ["moe", "main"])


def test_partners_of_transfers_and_dies_of_the_graph_follow_the_role() -> None:
    deployment = afd("ge_graph", ratio=2).deployment
    assert partners("layer.0.afd.send", deployment, 3) == "rank 5"
    assert partners("layer.0.mb1.afd.recv.1", deployment, 5) == "rank 3"
    assert partners("layer.0.moe.dispatch", deployment, 5) == "ranks 4-5"
    assert partners("layer.0.moe.gmm1", deployment, 5) is None
    straight = direct("ge_graph", ratio=2).deployment
    assert partners("layer.0.mb1.afd.send", straight, 3) == "ranks 0-5"
    assert partners("layer.0.afd.wait", straight, 5) is None
    assert partners("layer.0.afd.recv", straight, 5) is None
    dies = [graph_die(deployment, place_of(deployment, rank)) for rank in range(6)]
    assert dies == [0, 1, 0, 1, 2, 2]


def test_groups_are_named_by_their_ranks() -> None:
    assert group_of_text("tag=ptd:1;rank_list=8,9,10,11") == "ranks 8-11"
    assert group_of_text("ranks 0-127") == "ranks 0-127"
    assert group_of_text("") is None
    assert ranks_of_text("tag=user:2;rank_list=3,67") == [3, 67]
    assert peer_label(67, [3, 67]) == "rank 67"
    # A transfer in a larger group would be told apart.
    assert peer_label(67, range(128)) == "rank 67 in ranks 0-127"


def test_the_listing_says_that_nothing_was_executed() -> None:
    lines = listing(planned())
    assert lines[0] == TITLE == "lowered, not executed"
    assert len(lines) == len(planned()) + 2
    (dispatch,) = (line for line in lines if line.startswith("layer.0.moe.dispatch"))
    assert "moe  " in dispatch
    assert "c8v16" in dispatch
    assert dispatch.endswith("ranks 0-3")
    (down,) = (line for line in lines if line.startswith("layer.0.dense.0.down"))
    assert down.endswith(f" x {SMALL.hidden_size}")
    shown = {op.name for op in outside_and_first(planned())}
    assert "lm_head" in shown
    assert "layer.0.add" in shown
    assert not [name for name in shown if name.startswith("layer.1")]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torchair would be told, instead of telling it."""
    log: list[str] = []

    @contextmanager
    def scope(name: str, *arguments: object) -> Iterator[None]:
        log.append(" ".join(map(str, ("enter", name, *arguments))).rstrip())
        try:
            yield
        finally:
            log.append(f"exit {name}")

    monkeypatch.setattr(npu_order, "scope", scope)
    return log


def test_scopes_are_left_when_an_exception_passes(told: list[str]) -> None:
    order = GeOrder(HARDWARE)
    with (
        pytest.raises(ZeroDivisionError),
        order.stream("moe"),
        order.core_limit(8, None),
        order.super_kernel("layer.0.second"),
    ):
        raise ZeroDivisionError
    assert told == [
        "enter npu_stream_switch moe",
        "enter limit_core_num 8 48",
        "enter super_kernel layer.0.second",
        "exit super_kernel",
        "exit limit_core_num",
        "exit npu_stream_switch",
    ]
    assert order.current == "main"


def test_what_is_in_force_is_not_said_again_but_lifted_where_it_must_be(told: list[str]) -> None:
    order = GeOrder(HARDWARE)
    with order.stream("main"), order.core_limit(None, None), order.super_kernel(None):
        assert told == []
    with order.core_limit(16, 32), order.core_limit(16, 32), order.core_limit(None, None):
        assert told == ["enter limit_core_num 16 32", "enter limit_core_num 24 48"]
    told.clear()
    with order.super_kernel("one"), order.super_kernel(None):
        assert told == ["enter super_kernel one", "enter super_kernel"]


def test_25_cube_cores_are_refused_before_anything_is_said(told: list[str]) -> None:
    order = GeOrder(HARDWARE)
    with pytest.raises(InputError, match="op_aicore_num"), order.core_limit(25, 48):
        pass
    assert told == []


class Weights(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"q_a": (3, 4), "w13": (2, 6, 4), "uk": (2, 3, 4)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.rand(shape)))


def test_weights_of_products_have_their_inner_size_first() -> None:
    forms, model = Forms(), Weights()
    bind_weights(forms, model, lambda host: host.contiguous())
    assert torch.equal(forms.of(model.q_a), model.q_a.T)
    assert torch.equal(forms.of(model.w13), model.w13.transpose(1, 2))
    assert torch.equal(forms.of(model.uk), model.uk)
    assert len(forms.inputs) == 3


def test_a_form_is_found_by_views_of_all_of_it_and_by_no_other() -> None:
    forms, model = Forms(), Weights()
    bind_weights(forms, model, lambda host: host.clone())
    same = torch.unflatten(model.uk, 1, (3, 1))[slice(None)].flatten(1, 2)
    assert forms.of(same) is forms.of(model.uk)
    for other in (model.uk[1:], torch.rand(2, 3, 4)):
        with pytest.raises(UnboundError):
            forms.of(other)


@given(
    prompts=st.integers(1, 12),
    tokens=st.integers(1, 9),
    tp=st.sampled_from((1, 2, 4)),
    parts=st.integers(1, 3),
)
def test_lm_head_gets_as_many_prompts_as_the_twin_counts(
    prompts: int, tokens: int, tp: int, parts: int
) -> None:
    """Split over dies, the ends of prompts need not lie evenly."""
    workload = replace(PREFILL.workload, global_batch=prompts, kv_tokens=tokens)
    schedule = replace(with_role(PREFILL, attention_tp=tp, o_proj_tp=tp), workload=workload)
    per_group = -(-prompts // (ROLE.dies // tp))
    schedule = replace(schedule, prefill=PrefillPlan(micro_batches=min(parts, per_group)))
    layout = Layout(schedule.deployment, prompts, prefill_order(schedule))
    counts = [tokens] * prompts
    found = last_rows(layout, layout.parts("prefill", counts), counts)
    assert len(found.rows[0]) == step_shapes(schedule, SMALL).head_rows(per_group)
