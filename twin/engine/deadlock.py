"""What a DeadlockError says: which ops wait, and for what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twin.graph.step_graph import Op

_NAMED = 12
"""How many ops are named; more would hide the cause."""


def who_waits(
    queues: Iterable[Sequence[Op]],
    *,
    ended: Callable[[Op], bool],
    head_done: Callable[[Op], bool],
    collectives: dict[str, list[Op]],
    ops: Sequence[Op],
    pool_queues: dict[int, tuple[Op, ...]],
) -> str:
    """The message for a run in which nothing moves any more.

    Only the front op of each stream is named: those behind it wait for nothing else.
    """
    fronts = [
        front for queue in queues if (front := next((o for o in queue if not ended(o)), None))
    ]
    lines = []
    for op in fronts:
        missing = [ops[dep] for dep in dict.fromkeys(op.deps) if not ended(ops[dep])]
        if missing:
            reason = f"the end of {_names(missing)}"
        elif op in (queue := pool_queues[op.die]):
            ahead = queue[: queue.index(op)]
            holders = [
                other
                for other in fronts
                if other.die == op.die and head_done(other) and (other.cores.aic or other.cores.aiv)
            ]
            reason = f"{op.cores.aic} aic + {op.cores.aiv} aiv cores held by {_names(holders)}"
            if ahead:
                reason += f", behind {_names(ahead)}"
        else:
            assert op.rendezvous is not None, "an op that runs alone always ends"
            late = [member for member in collectives[op.rendezvous] if not head_done(member)]
            reason = f"{_names(late)} to join rendezvous {op.rendezvous!r}"
        lines.append(f"{_name(op)} waits for {reason}")
    more = len(lines) - _NAMED
    text = "; ".join(lines[:_NAMED]) + (f"; and {more} more streams wait" if more > 0 else "")
    return f"the step cannot finish: {text}"


def _name(op: Op) -> str:
    return f"{op.name} (die {op.die}, {op.stream})"


def _names(ops: Sequence[Op]) -> str:
    shown = ", ".join(_name(op) for op in ops[:_NAMED])
    return shown + (f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else "")
