"""AFD over camp2p: transfers hold vector cores, which the schedule can limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transports import on_transport

from hardware_models.demand import Cores
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from hardware_models.ops import VectorReceive, VectorSend
from twin.engine import reference
from twin.engine.compiled import simulate
from twin.graph.build import build_step_graph
from twin.graph.step_graph import Op, StepGraph
from twin.models import load_model
from twin.schedule import CoreLimit, Schedule
from twin.validate import validate_schedule
from twin.workload import Workload

HARDWARE = load_hardware("a3-752t")
MODEL = load_model("longcat-flash-560b")


def build(schedule: Schedule, layers: int = 3) -> StepGraph:
    validate_schedule(schedule, MODEL, HARDWARE)
    return build_step_graph(schedule, MODEL, HARDWARE, layers=layers)


def transfers(graph: StepGraph, role: str) -> list[Op]:
    return [op for op in graph.ops if ".afd." in op.name and graph.dies[op.die].role == role]


def refused(schedule: Schedule) -> InputError:
    with pytest.raises(InputError) as caught:
        validate_schedule(schedule, MODEL, HARDWARE)
    return caught.value


def test_a_transfer_takes_eight_vector_cores_unless_told_otherwise() -> None:
    graph = build(on_transport("camp2p"))
    assert {op.cores for op in transfers(graph, "attention")} == {Cores(0, 8)}
    assert {op.cores for op in transfers(graph, "ffn")} == {Cores(0, 8)}
    wide = build(on_transport("camp2p", link=CoreLimit(aiv=12)))
    assert {op.cores for op in transfers(wide, "attention")} == {Cores(0, 12)}


@pytest.mark.parametrize("ratio", [1, 3, 7])
def test_transfers_of_an_ffn_die_share_its_cores(ratio: int) -> None:
    graph = build(on_transport("camp2p", ratio))
    one_pass = [op for op in transfers(graph, "ffn") if op.name.startswith("layer.1.afd.send")]
    assert len(one_pass) == ratio
    assert sum(op.cores.aiv for op in one_pass) == 8
    assert {op.cores.aiv for op in transfers(graph, "attention")} == {8}


def test_the_bytes_are_those_of_the_pairs_over_sdma_and_go_over_the_link() -> None:
    sdma, camp2p = (
        {op.name + str(op.die): op for op in build(on_transport(transport)).ops}
        for transport in ("sdma_pairs", "camp2p")
    )
    assert list(sdma) == list(camp2p)
    for name, op in camp2p.items():
        other = sdma[name]
        assert (op.deps, op.stream, op.peer) == (other.deps, other.stream, other.peer)
        if isinstance(op.spec, VectorSend):
            assert op.demand.link_bytes == other.demand.link_bytes == 12 * 6144 * 2
            assert (op.demand.sdma_bytes, other.demand.sdma_bytes) == (0, 12 * 6144 * 2)
        elif not isinstance(op.spec, VectorReceive):
            assert (op.spec, op.cores) == (other.spec, other.cores)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("ratio", [1, 3])
def test_engines_agree(ratio: int, micro_batches: int) -> None:
    graph = build(on_transport("camp2p", ratio, micro_batches))
    assert simulate(graph).records == reference.simulate(graph).records


def test_the_main_stream_waits_for_cores_that_a_transfer_holds() -> None:
    """Without limits the send comes first and the all-gather wants every vector core."""
    starts = []
    for limits in ({}, {"main": CoreLimit(aiv=40), "link": CoreLimit(aiv=8)}):
        graph = build(on_transport("camp2p", **limits))
        records = {op.name: simulate(graph).records[op.index] for op in graph.ops if op.die == 0}
        ready_us = records["layer.1.attention.0.post_norm"].end_us
        send, gather = (records[f"layer.1.{op}"] for op in ("afd.send", "dense.0.all_gather"))
        assert send.start_us < ready_us + 2
        starts.append(gather.start_us - (ready_us if limits else send.end_us))
    assert starts[0] == pytest.approx(0, abs=1e-6)
    assert starts[1] < 2


def test_fewer_cores_make_a_large_transfer_slower() -> None:
    many = replace(on_transport("camp2p"), workload=with_batch(64 * 128))
    few = replace(on_transport("camp2p", link=CoreLimit(aiv=1)), workload=with_batch(64 * 128))
    slow, fast = (
        next(op for op in transfers(build(s, 1), "attention") if op.name.endswith("send"))
        for s in (few, many)
    )
    assert slow.demand.vector_us == pytest.approx(8 * fast.demand.vector_us)


def with_batch(sequences: int) -> Workload:
    return replace(on_transport("camp2p").workload, global_batch=sequences)


@pytest.mark.parametrize("stage", [0, 1])
def test_vector_cores_of_transfers_are_limited_where_they_hold_any(stage: int) -> None:
    where = f"stages[{stage}].streams.link"
    limits = {"attention": 0, "ffn": 1}
    for field, limit, allowed in (
        ("aic", CoreLimit(aic=1), "no cube cores"),
        ("aiv", CoreLimit(aiv=49), "1 to 48"),
        ("aiv", CoreLimit(aiv=0), "1 to 48"),
    ):
        schedule = on_transport("camp2p")
        stages = tuple(
            replace(s, streams={**s.streams, "link": limit}) if limits[s.role] == stage else s
            for s in schedule.stages
        )
        error = refused(replace(schedule, stages=stages))
        assert error.field == f"{where}.{field}"
        assert allowed in error.allowed


def test_limits_of_main_and_link_fit_the_die_together() -> None:
    error = refused(on_transport("camp2p", main=CoreLimit(aiv=44), link=CoreLimit(aiv=8)))
    assert (error.field, error.value) == ("stages[0].streams", "52 aiv")


def test_each_attention_die_of_an_ffn_die_needs_a_core() -> None:
    error = refused(on_transport("camp2p", 7, link=CoreLimit(aiv=6)))
    assert (error.field, error.value) == ("stages[1].streams.link.aiv", 6)
    assert "at least 7" in error.allowed
    validate_schedule(on_transport("camp2p", 7, link=CoreLimit(aiv=7)), MODEL, HARDWARE)


def test_over_sdma_there_is_nothing_to_limit() -> None:
    error = refused(on_transport("sdma_pairs", link=CoreLimit(aiv=8)))
    assert (error.field, error.value) == ("stages[0].streams.link.aiv", 8)


def test_cores_of_a_transfer_may_be_chosen_in_eager() -> None:
    schedule = on_transport("camp2p", link=CoreLimit(aiv=4))
    eager = replace(
        schedule,
        deployment=replace(schedule.deployment, graph_mode="eager"),
        super_kernel=(),
        prefetch=(),
    )
    assert {op.cores.aiv for op in transfers(build(eager), "ffn")} == {4}


def test_direct_transfers_have_all_cores_in_eager_where_streams_have_no_limits() -> None:
    def eager(link: CoreLimit) -> Schedule:
        schedule = on_transport("direct", link=link)
        deployment = replace(schedule.deployment, graph_mode="eager")
        return replace(schedule, deployment=deployment, super_kernel=(), prefetch=())

    graph = build(eager(CoreLimit()))
    sends = [op for op in graph.ops if op.name.endswith("afd.send")]
    assert {op.cores.aiv for op in sends} == {HARDWARE.count("aiv_count")}
    error = refused(eager(CoreLimit(aiv=4)))
    assert (error.field, error.allowed) == (
        "stages[0].streams.link",
        "no core limit in eager",
    )
