"""What an engine refuses before it runs: amounts, references and cores that cannot be."""

from __future__ import annotations

from hardware_models.errors import DeadlockError, InputError
from hardware_models.hardware import Hardware
from twin.graph.step_graph import Op, StepGraph

LARGEST = 1e15
"""Largest amount (us, bytes, GB/s) that an engine takes; sums of these stay finite."""

SMALLEST_RATE_GBPS = 1e-6

_DEMANDED = (
    "head_us", "cube_us", "vector_us", "latency_us", "hbm_bytes", "sdma_bytes", "link_bytes",
)  # fmt: skip
_CAPS = ("hbm_cap_gbps", "l2_cap_gbps")
_RATES = ("hbm_read_gbps", "l2_gbps", "sdma_gbps", "link_gbps")


def check_graph(graph: StepGraph) -> None:
    """Refuse a graph that no engine can run; what only shows in the running is not found.

    Raises:
        InputError: an amount that is NaN, infinite, negative or above :data:`LARGEST`, an
            index, dependency, die or peer that does not exist, or a rate of the hardware
            out of range; the field is named ``<op>.<field>``.
        DeadlockError: an op asks for more cores than its die has.
    """
    _check_hardware(graph.hardware)
    aic_count = graph.hardware.count("aic_count")
    aiv_count = graph.hardware.count("aiv_count")
    dies = {die.index for die in graph.dies}
    if len(dies) != len(graph.dies):
        raise InputError("dies", [die.index for die in graph.dies], "each index once")
    for position, op in enumerate(graph.ops):
        if op.index != position:
            raise InputError(f"{op.name}.index", op.index, f"its place in the graph, {position}")
        _check_references(op, dies, len(graph.ops))
        _check_amounts(op)
        if op.cores.aic > aic_count or op.cores.aiv > aiv_count:
            raise DeadlockError(
                f"{op.name} (die {op.die}, {op.stream}) waits for ever for {op.cores.aic} aic + "
                f"{op.cores.aiv} aiv cores of a die with {aic_count} + {aiv_count}"
            )


def _check_hardware(hardware: Hardware) -> None:
    for name in _RATES:
        if not SMALLEST_RATE_GBPS <= hardware[name] <= LARGEST:
            raise InputError(
                f"{hardware.name}.{name}",
                hardware[name],
                f"a rate from {SMALLEST_RATE_GBPS} to {LARGEST:g} GB/s",
            )
    if not 0.0 <= hardware["l2_usable_bytes"] <= LARGEST:
        raise InputError(
            f"{hardware.name}.l2_usable_bytes",
            hardware["l2_usable_bytes"],
            f"bytes from 0 to {LARGEST:g}",
        )
    if not 0.0 <= hardware["l2_pollution"] <= 1.0:
        raise InputError(
            f"{hardware.name}.l2_pollution", hardware["l2_pollution"], "a fraction from 0 to 1"
        )


def _check_references(op: Op, dies: set[int], ops: int) -> None:
    if op.die not in dies:
        raise InputError(f"{op.name}.die", op.die, f"a die of the graph: {sorted(dies)}")
    if op.peer is not None and op.peer not in dies:
        raise InputError(f"{op.name}.peer", op.peer, f"a die of the graph: {sorted(dies)}")
    for dep in op.deps:
        if not 0 <= dep < ops:
            raise InputError(f"{op.name}.deps", dep, f"the index of an op, 0 to {ops - 1}")
    if op.cores.aic < 0 or op.cores.aiv < 0:
        raise InputError(f"{op.name}.cores", op.cores, "counts of at least 0")


def _check_amounts(op: Op) -> None:
    demand = op.demand
    _check(op, "gap_us", op.gap_us)
    _check(op, "release_us", op.release_us)
    for name in _DEMANDED:
        _check(op, f"demand.{name}", getattr(demand, name))
    for name in _CAPS:
        value = getattr(demand, name)
        if value != 0.0 and not SMALLEST_RATE_GBPS <= value <= LARGEST:
            raise InputError(
                f"{op.name}.demand.{name}",
                value,
                f"0 (no cap) or a rate from {SMALLEST_RATE_GBPS} to {LARGEST:g} GB/s",
            )
    for read in demand.weights:
        _check(op, f"demand.weights[{read.weight}].bytes", read.bytes)
    if demand.fills is not None:
        _check(op, f"demand.fills[{demand.fills.weight}].bytes", demand.fills.bytes)


def _check(op: Op, field: str, value: float) -> None:
    # Written so that NaN, which compares false with everything, is refused too.
    if not 0.0 <= value <= LARGEST:
        raise InputError(f"{op.name}.{field}", value, f"a number from 0 to {LARGEST:g}")
