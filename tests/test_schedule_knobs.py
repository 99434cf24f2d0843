"""Every field of a schedule: what changing it changes in the twin and in the runtime.

Fields are read off the dataclasses, so that one that nobody honours cannot be forgotten.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from schedule_fields import leaves, values

import runtime_npu.parallel.world as world_module
from hardware_models.errors import InputError
from hardware_models.hardware import Hardware, load_hardware
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.groups import GROUPS, members
from runtime_npu.parallel.link import Link
from runtime_npu.plan import check_supported
from runtime_npu.profiled import one_thread
from runtime_npu.random_checkpoint import make_checkpoint
from runtime_npu.rank import Job, run_rank
from runtime_npu.source import STORED, WeightSource, contents_of
from twin.evaluate import evaluate
from twin.graph.build import build_step_graph
from twin.graph.step_graph import Op
from twin.model_spec import ModelSpec
from twin.models import load_model
from twin.schedule import Schedule
from twin.schedule_io import dump_schedule, load_schedule, parse_schedule
from twin.search.config import Drives, Knob
from twin.search.space import Space

Changes = Mapping[str, object]
"""Values by their path in the YAML file: ``stages.0.name``; ``...`` leaves the key out."""

ROLE = "deployment.roles.colocated"
O_PROJ = {f"{ROLE}.o_proj_tp": 2}
DRAFTS = {"workload.next_n": 1}
EAGER = {
    "deployment.graph_mode": "eager",
    "stages": [{"name": "all", "streams": {"main": {}}}],
    "prefetch": ...,
    "super_kernel": ...,
}


@dataclass(frozen=True, slots=True)
class Twin:
    """What the twin makes of a changed field: ``graph``, ``figures`` or ``refused`` (which field).

    ``figures``: the same ops, another latency, throughput or memory.
    """

    graph: bool = True
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the runtime does: another record or other groups, or refuses ``refused``.

    ``apart``: why the reference backend issues the same, and who honours the field instead.
    """

    refused: str | None = None
    apart: str | None = None


GRAPH, FIGURES = Twin(), Twin(graph=False)
RECORD = Runtime()
TRAFFIC = Runtime(apart="the traffic that was simulated: here prompts, drafts and router decide")


@dataclass(frozen=True, slots=True)
class Case:
    """A change of one field in ``base``; ``given`` holds before and after, ``too`` goes along."""

    base: str
    change: Changes
    twin: Twin = GRAPH
    runtime: Runtime = RECORD
    given: Changes = dataclasses.field(default_factory=dict)
    too: Changes = dataclasses.field(default_factory=dict)


def only(base: str, path: str, value: object, field: str) -> Case:
    """A field that the rest of the schedule decides: any other value is refused by name."""
    return Case(base, {path: value}, Twin(refused=field))


TINY, TWO, AFD, PREFILL = "tiny_colocated", "cpu/dp2", "cpu/afd_1_1", "cpu/prefill_2_micro_batches"
CASES: dict[str, Case] = {
    "format": only(TINY, "format", 2, "format"),
    "model": Case(TINY, {"model": "one_layer"}),
    "workload.phase": Case(TINY, {"workload.phase": "prefill"}, given=EAGER),
    "workload.global_batch": Case(TINY, {"workload.global_batch": 3}, runtime=TRAFFIC),
    "workload.kv_tokens": Case(TINY, {"workload.kv_tokens": 17}, runtime=TRAFFIC),
    "workload.next_n": Case(TINY, DRAFTS),
    "workload.acceptance": Case(TINY, {"workload.acceptance": 0.5}, FIGURES, TRAFFIC, given=DRAFTS),
    "workload.expert_load": Case(TINY, {"workload.expert_load": "uniform"}, runtime=TRAFFIC),
    "deployment.hardware": Case(
        TINY,
        {"deployment.hardware": "910b2"},
        runtime=Runtime(apart="a CPU stands for any die: core limits are recorded as numbers"),
    ),
    "deployment.quantisation": Case(TINY, {"deployment.quantisation": "w8a8"}),
    "deployment.graph_mode": Case(
        TINY,
        {"deployment.graph_mode": "npugraph_ex"},
        runtime=Runtime(apart="a CPU compiles no graph: the dry run lowers each mode"),
        given={"super_kernel": ...},
    ),
    "deployment.roles.*.dies": Case(AFD, {"deployment.roles.attention.dies": 2}),
    "deployment.roles.*.attention_tp": Case(TWO, {f"{ROLE}.attention_tp": 2}, given=O_PROJ),
    "deployment.roles.*.o_proj_tp": Case(TWO, O_PROJ),
    "deployment.roles.*.dense_tp": Case(TWO, {f"{ROLE}.dense_tp": 2}),
    "deployment.roles.*.ep": only(TWO, f"{ROLE}.ep", 1, f"{ROLE}.ep"),
    "deployment.roles.*.kvp": Case(TWO, {f"{ROLE}.kvp": 2}, given=O_PROJ),
    "deployment.roles.*.lm_head_tp": Case(TWO, {f"{ROLE}.lm_head_tp": 2}),
    "deployment.roles.*.embed_tp": Case(TWO, {f"{ROLE}.embed_tp": 2}),
    "deployment.afd.transport": Case(
        AFD,
        {"deployment.afd.transport": "direct"},
        given={"prefetch": []},
    ),
    "deployment.afd.micro_batches": Case(AFD, {"deployment.afd.micro_batches": 2}),
    "stages[].name": Case(TINY, {"stages.0.name": "early"}, too={"super_kernel.0": "early"}),
    "stages[].streams.*.aic": Case(TINY, {"stages.1.streams.main.aic": 12}),
    "stages[].streams.*.aiv": Case(TINY, {"stages.1.streams.main.aiv": 24}),
    "stages[].role": only(TINY, "stages.0.role", "ffn", "stages[0].role"),
    "stages[].ends_after": Case(TINY, {"stages.0.ends_after": "dense.0.down"}),
    "stages[].join": only(TINY, "stages.1.join", ..., "stages[1].join"),
    "prefetch[].weight": Case(TINY, {"prefetch.0.weight": "attention.1.q_b"}),
    "prefetch[].after": Case(TINY, {"prefetch.3.after": "dense.0.down"}),
    "prefetch[].bytes": Case(TINY, {"prefetch.0.bytes": 1024}),
    "prefetch[].role": only(TINY, "prefetch.0.role", "ffn", "prefetch[0].role"),
    "super_kernel[]": Case(TINY, {"super_kernel": ["stage1"]}),
    "moe.chunk_tokens": Case(PREFILL, {"moe.chunk_tokens": 8}),
    "moe.redundant_experts": Case(
        TINY, {"moe.redundant_experts": 1}, FIGURES, Runtime(refused="moe.redundant_experts")
    ),
    "prefill.micro_batches": Case(PREFILL, {"prefill.micro_batches": 1}),
}


def test_every_field_of_a_schedule_has_a_case() -> None:
    assert set(CASES) == set(leaves(Schedule))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where schedules, checkpoints and the model of one layer lie."""
    made = tmp_path_factory.mktemp("knobs")
    spec = dataclasses.replace(load_model("tiny"), num_layers=1)
    make_checkpoint(made / "one_layer", spec, seed=0)
    return made


def changed(folder: Path, base: str, *changes: Changes) -> Schedule:
    """The schedule ``base`` with values put in, read from a file as a user's is."""
    data = yaml.safe_load(dump_schedule(load_schedule(base)))
    for path, value in (item for each in changes for item in each.items()):
        *parents, last = path.split(".")
        at = data
        for key in parents:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if value is ...:
            del at[last]
        else:
            at[int(last) if isinstance(at, list) else last] = value
    if data["model"] == "one_layer":
        data["model"] = str(folder / "one_layer" / "config.json")
    file = folder / "schedule.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return load_schedule(str(file))


def before_and_after(folder: Path, case: Case) -> list[Schedule]:
    return [
        changed(folder, case.base, case.given),
        changed(folder, case.base, case.given, case.too, case.change),
    ]


@pytest.mark.parametrize("field", CASES)
def test_the_twin_honours_the_field_or_refuses_it(folder: Path, field: str) -> None:
    case = CASES[field]
    if case.twin.refused is not None:
        changed(folder, case.base, case.given)
        with pytest.raises(InputError) as caught:
            changed(folder, case.base, case.given, case.change)
        assert caught.value.field == case.twin.refused
        return
    first, second = before_and_after(folder, case)
    assert (_ops(first) != _ops(second)) == case.twin.graph
    if not case.twin.graph:
        assert _figures(first) != _figures(second)


def _machine(schedule: Schedule) -> tuple[ModelSpec, Hardware]:
    return load_model(schedule.model), load_hardware(schedule.deployment.hardware)


def _ops(schedule: Schedule) -> tuple[Op, ...]:
    return build_step_graph(schedule, *_machine(schedule)).ops


def _figures(schedule: Schedule) -> list[object]:
    found = evaluate(schedule, *_machine(schedule))
    return [found.latency_us, found.tokens_per_s_per_die, dict(found.memory)]


DRIVEN: dict[str, tuple[str, Knob, set[str]]] = {
    "ratio": (
        "recipe_afd",
        Knob(drives="ratio", levels=(1, 3)),
        {"deployment.roles.*.dies", "deployment.roles.*.ep", "prefetch[].bytes"},
    ),
    "micro_batches": (
        AFD,
        Knob(drives="micro_batches", levels=(1, 2)),
        {"deployment.afd.micro_batches"},
    ),
    "transport": (
        AFD,
        Knob(drives="transport", levels=("sdma_pairs", "camp2p")),
        {"deployment.afd.transport"},
    ),
    "cores": (
        TINY,
        Knob(drives="cores", levels=(16, 12), stage="stage2"),
        {"stages[].streams.*.aic", "stages[].streams.*.aiv"},
    ),
    "ends_after": (
        TINY,
        Knob(
            drives="ends_after",
            levels=("attention.0.post_norm", "attention.0.o_proj"),
            stage="stage1",
        ),
        {"stages[].ends_after"},
    ),
    "drafts": (
        "recipe_colocated",
        Knob(drives="drafts", levels=(2, 1)),
        {"workload.next_n", "workload.acceptance"},
    ),
    "vector_cores": (
        TINY,
        Knob(drives="vector_cores", levels=(32, 24), stage="stage2"),
        {"stages[].streams.*.aiv"},
    ),
    "prefetch": (
        TINY,
        Knob(drives="prefetch", levels=(0.5, 1), weights={"moe.router": "attention.0.o_proj"}),
        {"prefetch[].bytes"},
    ),
    "place": (
        TINY,
        Knob(
            drives="place", levels=("attention.0.o_proj", "attention.0.uv"),
            weights={"moe.router": "attention.0.o_proj"},
        ),
        {"prefetch[].after"},
    ),
    "super_kernel": (TINY, Knob(drives="super_kernel", levels=(1, 0)), {"super_kernel[]"}),
    "chunk": (PREFILL, Knob(drives="chunk", levels=(4, 8)), {"moe.chunk_tokens"}),
    "sizes": (
        TWO,
        Knob(drives="sizes", levels=(1, 2), sizes=("lm_head_tp",)),
        {"deployment.roles.*.lm_head_tp"},
    ),
    "batch": (TINY, Knob(drives="batch", levels=(2, 3)), {"workload.global_batch"}),
}  # fmt: skip
"""What each drive of a search changes: the fields that differ between two levels of a knob."""


def test_every_drive_of_a_search_is_listed() -> None:
    assert set(DRIVEN) == set(typing.get_args(Drives))


@pytest.mark.parametrize("drive", DRIVEN)
def test_a_searched_knob_changes_its_fields_and_no_others(drive: str) -> None:
    base, knob, expected = DRIVEN[drive]
    schedule = load_schedule(base)
    space = Space(schedule, *_machine(schedule), {drive: knob}, ())
    space.check()
    first, second = (sorted(values(space.schedule(index))) for index in (0, 1))
    assert {path for path, _ in set(first) ^ set(second)} == expected <= set(CASES)


@pytest.fixture
def _alone_in_the_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process may be any rank: groups answer as if their members had sent what it sent."""

    def echo(self: Communicator, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def exchange(
        self: Communicator, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        assert list(sent) == list(received)
        return rows.clone()

    def receive(self: Link, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(*shape, dtype=dtype)

    monkeypatch.setattr(world_module, "_handles", lambda deployment: {})
    monkeypatch.setattr(Communicator, "all_to_all", echo)
    monkeypatch.setattr(Communicator, "exchange", exchange)
    monkeypatch.setattr(Link, "send", lambda self, x: None)
    monkeypatch.setattr(Link, "receive", receive)
    with one_thread():
        yield


@pytest.mark.usefixtures("_alone_in_the_world")
@pytest.mark.parametrize("field", [name for name in CASES if CASES[name].twin.refused is None])
def test_the_runtime_honours_the_field_or_refuses_it(folder: Path, field: str) -> None:
    case = CASES[field]
    first, second = before_and_after(folder, case)
    check_supported(first, "first")
    if case.runtime.refused is not None:
        with pytest.raises(InputError) as caught:
            check_supported(second, "second")
        assert caught.value.field == case.runtime.refused
        return
    check_supported(second, "second")
    issued = [_issued(folder, dump_schedule(schedule)) for schedule in (first, second)]
    assert (issued[0] == issued[1]) == (case.runtime.apart is not None)


@cache
def _issued(folder: Path, schedule: str) -> list[object]:
    """What every rank issues, and with whom it exchanges; all as in the step graph."""
    job = _job(folder, parse_schedule(schedule, "schedule"))
    deployment = job.schedule.deployment
    issued: list[object] = []
    for rank in range(deployment.total_dies):
        report = run_rank(job, rank)
        assert report.differences == ()
        assert report.ops
        issued.append((report.ops, [members(deployment, name, rank) for name in GROUPS]))
    return issued


def _job(folder: Path, schedule: Schedule) -> Job:
    """Prompts as the workload has them in prefill, and short ones that a step follows in decode."""
    spec, dtype = load_model(schedule.model), STORED[schedule.deployment.quantisation]
    contents = contents_of(schedule)
    place = folder / f"{spec.num_layers}_{dtype}_{contents.mtp}_{contents.int8}"
    if not place.exists():
        make_checkpoint(place, spec, 0, dtype, contents)
    workload = schedule.workload
    length = workload.kv_tokens if workload.is_prefill else 3
    prompts = (tuple(range(1, length + 1)),) * 4
    return Job(schedule, WeightSource(place, spec, dtype, ()), prompts, 2, None, None)
