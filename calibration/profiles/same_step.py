"""Whether a profile ran a step graph: launches of the kernels that make a network what it is."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

from calibration.profiles.mapping import kind_of_type, type_of
from calibration.profiles.profile import RankProfile
from hardware_models.demand import OpSpec
from twin.graph.step_graph import StepGraph
from twin.report.ascend_rows import collective_of, is_kernel, kernel_text

# By our kind: what it is counted as.  Both forms of attention are one kernel.
_COUNTED = {
    "mla_prolog": "mla_prolog", "mla_attention": "attention", "gqa_attention": "attention",
    "gating_topk": "gating_topk", "dispatch": "dispatch", "combine": "combine",
}  # fmt: skip
# Of these software may fuse some, split some or add some of its own: one at least must be there.
_PRESENT = {
    "matmul": "matmul", "quant_matmul": "quant_matmul", "grouped_matmul": "grouped_matmul",
    "grouped_matmul_swiglu_quant": "grouped_matmul", "collective": "collective",
    "hccl_collective": "collective",
}  # fmt: skip


def launches_that_differ(rank: RankProfile, graph: StepGraph) -> list[str]:
    """In what the rank's launches a step (the median over its steps) differ from the graph's.

    Held against the die of the graph that it is most like; empty: nothing differs.
    """
    steps: dict[str, list[str]] = {step: [] for step in rank.steps}
    for kernel in (*rank.counted.computing, *rank.counted.collectives):
        steps[kernel.step].append(kind_of_type(type_of(kernel)))
    counts = [_counted(kinds) for kinds in steps.values()]
    names = sorted({*_COUNTED.values(), *_PRESENT.values()})
    found = {name: statistics.median_low([count[name] for count in counts]) for name in names}
    dies = [
        _counted(_kind(op.spec) for op in graph.ops if op.die == die.index and is_kernel(op.spec))
        for die in graph.dies
    ]
    return min((_unlike(found, die) for die in dies), key=len)


def _kind(spec: OpSpec) -> str:
    """The kind that the op has in a profile; empty where the kernel is none that is known."""
    return "collective" if collective_of(spec) else kind_of_type(kernel_text(spec).type)


def _counted(kinds: Iterable[str]) -> Counter[str]:
    groups = {**_COUNTED, **_PRESENT}
    return Counter(groups[kind] for kind in kinds if kind in groups)


def _unlike(found: dict[str, int], expected: Counter[str]) -> list[str]:
    exact = set(_COUNTED.values())
    return [
        f"{name} {count} ({expected[name]})"
        for name, count in found.items()
        if (count != expected[name] if name in exact else expected[name] and not count)
    ]
