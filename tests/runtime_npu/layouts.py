"""Deployments to try, and what a rank does in the tests of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from oracle import spec

from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware
from runtime_npu.backends.direct import Arrived, Away
from runtime_npu.backends.fillers import Choices
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.generate import Decoder, rank_blocks
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash, StepOutput
from runtime_npu.parallel.communicator import Communicator
from runtime_npu.parallel.world import World
from runtime_npu.plan import PrefillOrder, layer_plan
from runtime_npu.rank import step_differences
from runtime_npu.record import Event, OpRecord
from runtime_npu.weights import Contents
from twin.deployment import Afd, Deployment, RoleDeployment, Transport
from twin.graph.build import build_step_graph
from twin.model_spec import ModelSpec
from twin.schedule import CoreLimit, Prefetch, Schedule, Stage
from twin.validate import validate_schedule
from twin.workload import Workload

HARDWARE = load_hardware("a3-752t")
BLOCK_TOKENS = 4

SIZES: dict[str, object] = {
    "num_attention_heads": 4,
    "v_head_dim": 16,
    "ffn_hidden_size": 80,
    "n_routed_experts": 12,
    "zero_expert_num": 4,
    "vocab_size": 96,
}
SPECS = {
    s.name: s
    for s in (
        spec("split", **SIZES),
        spec(
            "split_many_experts",
            **{
                **SIZES,
                "n_routed_experts": 24,
                "zero_expert_num": 12,
                "moe_topk": 12,
                "num_layers": 3,
                "hidden_size": 64,
                "vocab_size": 1024,
            },
        ),
        spec(
            "split_small_vocabulary",
            **{
                **SIZES,
                "num_attention_heads": 8,
                "zero_expert_num": 0,
                "moe_topk": 2,
                "num_layers": 1,
                "vocab_size": 12,
            },
        ),
    )
}


def colocated(dies: int, **sizes: int) -> Deployment:
    return _deployment({"colocated": RoleDeployment(dies=dies, ep=dies, **sizes)})


def afd(
    attention: int,
    ffn: int,
    micro_batches: int = 1,
    *,
    transport: Transport = "sdma_pairs",
    **sizes: int,
) -> Deployment:
    roles = {
        "attention": RoleDeployment(dies=attention, **sizes),
        "ffn": RoleDeployment(dies=ffn, ep=ffn),
    }
    return _deployment(roles, Afd(transport=transport, micro_batches=micro_batches))


def _deployment(roles: dict[str, RoleDeployment], afd: Afd | None = None) -> Deployment:
    return Deployment(
        hardware="a3-752t",
        quantisation="fp32",
        graph_mode="ge_graph",
        roles=roles,  # type: ignore[arg-type]
        afd=afd,
    )


LAYOUTS = {
    "one die": colocated(1),
    "dp2": colocated(2),
    "ep4": colocated(4),
    "attention_tp2": colocated(2, attention_tp=2, o_proj_tp=2),
    "attention_tp4": colocated(4, attention_tp=4, o_proj_tp=4),
    "o_proj_tp2": colocated(2, o_proj_tp=2),
    "o_proj_tp4": colocated(4, o_proj_tp=4),
    "dense_tp2": colocated(2, dense_tp=2),
    "dense_tp4": colocated(4, dense_tp=4),
    "lm_head_tp2": colocated(2, lm_head_tp=2),
    "embed_tp2": colocated(2, embed_tp=2),
    "vocabulary_tp4": colocated(4, lm_head_tp=4, embed_tp=4),
    "kvp2": colocated(2, kvp=2, o_proj_tp=2),
    "kvp4": colocated(4, kvp=4, o_proj_tp=4),
    "kvp2 of 4, dense_tp2, vocabulary": colocated(
        4, kvp=2, o_proj_tp=2, dense_tp=2, lm_head_tp=4, embed_tp=4
    ),
    "kvp4, dense_tp2": colocated(4, kvp=4, o_proj_tp=4, dense_tp=2, lm_head_tp=2, embed_tp=2),
    "recipe": colocated(4, o_proj_tp=4, dense_tp=4, lm_head_tp=4),
    "recipe halves": colocated(4, o_proj_tp=2, dense_tp=4, lm_head_tp=2, embed_tp=4),
    "attention_tp2 of 4, all": colocated(
        4, attention_tp=2, o_proj_tp=2, dense_tp=4, lm_head_tp=4, embed_tp=2
    ),
    "afd 1:1": afd(1, 1),
    "afd 1:1, 3 micro-batches": afd(1, 1, 3),
    "afd 2:1": afd(2, 1),
    "afd 2:1, 2 micro-batches": afd(2, 1, 2),
    "afd 2:2, 2 micro-batches, recipe": afd(2, 2, 2, o_proj_tp=2, dense_tp=2, lm_head_tp=2),
    "afd 2:1, attention_tp2": afd(2, 1, 1, attention_tp=2, o_proj_tp=2, dense_tp=2, embed_tp=2),
    "afd 2:1, attention_tp2, 2 micro-batches": afd(2, 1, 2, attention_tp=2, o_proj_tp=2),
    "afd 2:2, kvp2": afd(2, 2, 2, kvp=2, o_proj_tp=2, dense_tp=2),
    "afd 3:1": afd(3, 1),
    "afd 3:1, 2 micro-batches": afd(3, 1, 2),
    "direct 1:1": afd(1, 1, transport="direct"),
    "direct 1:1, 3 micro-batches": afd(1, 1, 3, transport="direct"),
    "direct 2:1": afd(2, 1, transport="direct"),
    "direct 3:1, 2 micro-batches": afd(3, 1, 2, transport="direct"),
    "direct 1:2": afd(1, 2, transport="direct"),
    "direct 3:2, 2 micro-batches": afd(3, 2, 2, transport="direct"),
    "direct 2:2, 2 micro-batches, recipe": afd(
        2, 2, 2, transport="direct", o_proj_tp=2, dense_tp=2, lm_head_tp=2
    ),
    "direct 2:1, attention_tp2": afd(2, 1, transport="direct", attention_tp=2, o_proj_tp=2),
    "direct 2:2, kvp2": afd(2, 2, 2, transport="direct", kvp=2, o_proj_tp=2, dense_tp=2),
}


TP_SIZES = ("attention_tp", "o_proj_tp", "dense_tp", "kvp", "lm_head_tp", "embed_tp")


def legal(attention: int, ffn: int | None) -> list[Deployment]:
    """Every legal deployment of so many dies of SPECS["split"]; ``ffn`` None: colocated."""
    found = []
    for values in product(divisors(attention), repeat=len(TP_SIZES)):
        sizes = dict(zip(TP_SIZES, values, strict=True))
        for parts in (1,) if ffn is None else (1, 2):
            deployment = (
                colocated(attention, **sizes)
                if ffn is None
                else afd(attention, ffn, parts, **sizes)
            )
            try:
                validate_schedule(schedule_of(deployment, 7), SPECS["split"], HARDWARE)
            except InputError:
                continue
            found.append(deployment)
    return found


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def schedule_of(deployment: Deployment, sequences: int) -> Schedule:
    """Stages, limits, scopes and prefetches for a deployment: something of everything."""
    workload = Workload(
        phase="decode", global_batch=max(sequences, 3 * deployment.attention.dies), kv_tokens=8
    )
    late = [
        Prefetch(weight="dense.0.gate_up", after="attention.0.o_proj", bytes=10**6),
        Prefetch(weight="next.attention.0.q_a", after="dense.1.down", bytes=3000),
        Prefetch(weight="lm_head", after="add", bytes=4000),
    ]
    if deployment.is_direct:
        late.append(Prefetch(weight="moe.router", after="attention.0.o_proj", bytes=500))
    if deployment.is_afd:
        both = {"main": CoreLimit(), "link": CoreLimit()}
        return Schedule(
            format=1,
            model="test",
            workload=workload,
            deployment=deployment,
            stages=(
                Stage(name="attention", role="attention", streams=both, join="add"),
                Stage(name="ffn", role="ffn", streams=both),
            ),
            prefetch=(
                *late,
                Prefetch(role="ffn", weight="moe.w2", after="afd.recv", bytes=10**6),
                Prefetch(role="ffn", weight="next.moe.w13", after="afd.send", bytes=700),
            ),
            super_kernel=("attention.main", "ffn.main"),
        )
    return Schedule(
        format=1,
        model="test",
        workload=workload,
        deployment=deployment,
        stages=(
            Stage(name="first", ends_after="attention.0.post_norm", streams={"main": CoreLimit()}),
            Stage(
                name="second",
                streams={"main": CoreLimit(aic=16, aiv=32), "moe": CoreLimit(aic=8, aiv=16)},
                join="add",
            ),
        ),
        prefetch=(Prefetch(weight="moe.router", after="attention.0.o_proj", bytes=500), *late),
        super_kernel=("first", "second.main"),
    )


@dataclass(frozen=True)
class LayoutJob:
    """Greedy decoding of ``prompts`` with the checkpoint in ``folder``."""

    deployment: Deployment
    spec: ModelSpec
    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    steps: int
    backend: type[ReferenceBackend] = ReferenceBackend
    chunk_tokens: int | None = None
    """Of the prompts."""


@dataclass(frozen=True)
class LayoutReport:
    """Tokens of all sequences [steps][sequences]; logits [vocabulary] of those whose last rows
    are here, by (sequence, step); what differs from the step graph.
    """

    tokens: list[list[int]]
    logits: dict[tuple[int, int], torch.Tensor]
    differences: list[str]


def run_layout(job: LayoutJob, rank: int) -> LayoutReport:
    """What a rank finds, its decode's records beside the step graph."""
    world = World(job.deployment, rank)
    schedule = schedule_of(job.deployment, len(job.prompts))
    validate_schedule(schedule, job.spec, HARDWARE)
    kind = FfnDie if world.place.role == "ffn" else LongcatFlash
    order = PrefillOrder(chunk_tokens=job.chunk_tokens)
    plan = layer_plan(schedule, world.place.role)
    model = kind(job.spec, job.backend(), plan, world, prefill=order)
    with Checkpoint(job.folder, job.spec, None, Contents()) as checkpoint:
        load_weights(model, checkpoint, torch.float32)
    lengths = [len(prompt) + job.steps for prompt in job.prompts]
    blocks = rank_blocks(job.deployment, world.rank, lengths, None, BLOCK_TOKENS)
    decoder = Decoder(model, lengths, blocks, world, block_tokens=BLOCK_TOKENS)
    outputs = [decoder.prefill(job.prompts)]
    decoder.recorder.take()
    records: list[tuple[OpRecord, ...]] = []
    for _ in range(job.steps - 1):
        outputs.append(decoder.step(outputs[-1].tokens.tolist()))
        records.append(decoder.recorder.take())
    graph = build_step_graph(schedule, job.spec, HARDWARE)
    return LayoutReport(
        tokens=[output.tokens.tolist() for output in outputs],
        logits=logits_of(decoder, job.prompts, world, outputs),
        differences=step_differences(tuple(records), graph, world),
    )


def logits_of(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    world: World,
    outputs: Sequence[StepOutput],
) -> dict[tuple[int, int], torch.Tensor]:
    """Logits [vocabulary] of the sequences whose last rows are here, by (sequence, step)."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    if world.place.role == "ffn":
        return found
    for step, output in enumerate(outputs):
        counts = [len(prompt) if step == 0 else 1 for prompt in prompts]
        parts = decoder.layout.parts("decode" if step else "prefill", counts)
        rows = decoder.layout.rows_on(world.place.number, parts)
        own = [row[0] for row in rows if row is not None and row[1] + 1 == counts[row[0]]]
        for index, sequence in enumerate(own):
            found[sequence, step] = output.logits[index]
    return found


class ForgetsTheLse(ReferenceBackend):
    """Merges parts of the KV cache as if all weighed the same."""

    def merge(self, outputs: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return outputs.mean(0)


class DropsAPart(ReferenceBackend):
    """Leaves the last rank's part out of every sum."""

    def _sum(self, parts: torch.Tensor) -> torch.Tensor:
        return super()._sum(parts[:-1])


class TakesOtherRows(ReferenceBackend):
    """Scatters the sums to the wrong ranks."""

    def reduce_scatter(self, x: torch.Tensor, group: Communicator) -> torch.Tensor:
        return super().reduce_scatter(x.flip(0), group)


class KeepsArrivalOrder(ReferenceBackend):
    """Sends rows back from the experts as they lie, not as they came."""

    def restore_order(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return rows


class SkipsACollective(ReferenceBackend):
    """Does not say that it sums over ranks."""

    def launch(self, name: str, kind: str) -> Event:
        if name.endswith("reduce_scatter"):
            return Event(name, "main")
        return super().launch(name, kind)


class WeighsFillers(ReferenceBackend):
    """Takes what comes back for zero experts' fillers as if they had been chosen."""

    def receive_from_experts(
        self, back: Arrived, away: Away, x: torch.Tensor, choices: Choices
    ) -> torch.Tensor:
        heaviest = choices.weights.amax(1, keepdim=True)
        weights = choices.weights.where(choices.weights > 0, heaviest)
        return super().receive_from_experts(back, away, x, replace(choices, weights=weights))


class TakesFewRows(ReferenceBackend):
    """Fails where more than 9 rows come to a die's experts at once."""

    def topk_gating(
        self, logits: torch.Tensor, correction_bias: torch.Tensor, topk: int, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert len(logits) <= 9
        return super().topk_gating(logits, correction_bias, topk, scale)


class SkipsTheWait(ReferenceBackend):
    """Adds what comes back without waiting for the transfer."""

    def wait(self, event: Event) -> None:
        if not event.after.endswith("afd.recv"):
            super().wait(event)
