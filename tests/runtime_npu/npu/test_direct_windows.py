"""The npu backend's direct transfers on windows in this process: who gets what, what comes back.

The ops are stood in for by what docs/running_on_a3.md assumes of them, dies by memory here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from layouts import LAYOUTS, SPECS

from hardware_models.hardware import load_hardware
from runtime_npu.backends.direct import Away
from runtime_npu.backends.fillers import Choices
from runtime_npu.backends.npu import NpuBackend
from runtime_npu.backends.npu_issue import Listener
from runtime_npu.backends.npu_order import GeOrder
from runtime_npu.npu import direct_ops
from runtime_npu.npu.direct_ops import CONTEXT_BYTES
from runtime_npu.npu.forms import Forms
from runtime_npu.npu.window_forms import window_forms
from runtime_npu.parallel.groups import place_of
from runtime_npu.parallel.world import World
from twin.windows import Windows

DEPLOYMENT, SPEC = LAYOUTS["direct 3:2, 2 micro-batches"], SPECS["split"]
EXPERTS, TOPK, HIDDEN = SPEC.n_routed_experts, SPEC.moe_topk, 1024
WINDOWS = Windows(3, 2, rows=5, choices=TOPK, hidden=HIDDEN, element_bytes=2)
SENDERS, SERVERS = range(3), range(3, 5)
LOCAL = EXPERTS // len(SERVERS)
Copy = tuple[int, int, int, torch.Tensor]
"""Expert, token, choice and row."""


class Dies:
    """Windows of all dies; a context holds its die and the micro-batch that it found last."""

    def __init__(self, numbers: Callable[[int], int]) -> None:
        self._numbers = numbers
        self._there: dict[tuple[int, int, int], list[Copy]] = {}
        self._back: dict[tuple[int, int], dict[tuple[int, int], torch.Tensor]] = {}

    def call(self, op: str, *args: Any, **options: Any) -> Any:
        """What takes the place of torch_npu's ``op``."""
        return getattr(self, f"_{op}")(*args, **options)

    @staticmethod
    def context(die: int) -> torch.Tensor:
        """As made: the first wait is for micro-batch 0."""
        made = torch.zeros(CONTEXT_BYTES, dtype=torch.int8)
        made[0], made[1] = die, WINDOWS.micro_batches - 1
        return made

    def _npu_attention_to_ffn(self, *args: Any, **options: Any) -> None:
        x, session, turn, _, ids, table, group, ranks = args[:8]
        assert (group, ranks) == ("everyone", 5)
        for die in range(options["ffn_start_rank_id"], ranks):
            slot = die, int(session), int(turn)
            assert slot not in self._there, "nobody has read what is there"
            self._there[slot] = [
                (int(ids[0, token, k]), token, k, x[0, token])
                for token, k in product(range(x.shape[1]), range(ids.shape[2]))
                if table[0, ids[0, token, k], 1] == die
            ]

    def _ffn_worker_scheduler(self, context: torch.Tensor, sync_group_size: int) -> torch.Tensor:
        found = self._next(context)
        die, turn = int(found[0]), int(found[1])
        assert all((die, at, turn) in self._there for at in range(sync_group_size)), "hangs"
        found[2] = sync_group_size
        return found

    def _npu_ffn_worker_batching(
        self, context: torch.Tensor, experts: int, most: tuple[int, ...], token_dtype: int
    ) -> tuple[torch.Tensor, ...]:
        assert token_dtype == 1
        die, turn, sessions = context[:3].tolist()
        found = sorted(
            (expert, session, token, k, row)
            for session in range(sessions)
            for expert, token, k, row in self._there.pop((die, session, turn))
        )
        slots = most[0] * most[1] * most[2]
        rows = torch.full((slots, most[3]), torch.nan, dtype=torch.bfloat16)
        whose = torch.full((4, slots), -1, dtype=torch.int32)
        counts = torch.zeros(experts, 2, dtype=torch.int64)
        for place, (expert, session, token, k, row) in enumerate(found):
            rows[place] = row
            whose[:, place] = torch.tensor([session, turn, token, k])
            number = self._numbers(expert)
            counts[number, 0] = number
            counts[number, 1] += 1
        return rows, counts, *whose, torch.ones(slots), torch.tensor([len(found)])

    def _npu_ffn_to_attention(self, rows: torch.Tensor, *args: Any, **options: Any) -> None:
        *whose, total, group, ranks, _, _ = args
        assert (group, ranks) == ("everyone", 5)
        for place in range(int(total)):
            session, turn, token, k = (int(of[place]) for of in whose)
            die = int(options["attn_rank_table"][session])
            self._back.setdefault((die, turn), {})[token, k] = rows[place]

    def _attention_worker_scheduler(self, context: torch.Tensor) -> torch.Tensor:
        found = self._next(context)
        came = self._back.get((int(found[0]), int(found[1])), {})
        assert len(came) == WINDOWS.rows * TOPK, "hangs"
        return found

    def _npu_attention_worker_combine(
        self, context: torch.Tensor, weights: torch.Tensor, *_: Any, token_dtype: int
    ) -> tuple[torch.Tensor, None]:
        assert token_dtype == 1
        came = self._back.pop((int(context[0]), int(context[1])))
        summed = torch.zeros(WINDOWS.rows, HIDDEN)
        for (token, k), row in came.items():
            summed[token] += weights[token, k] * row.float()
        return summed.bfloat16(), None

    @staticmethod
    def _next(context: torch.Tensor) -> torch.Tensor:
        found = context.clone()
        found[1] = (found[1] + 1) % WINDOWS.micro_batches
        return found


class Pass:
    """One pass of all dies; expert e gives (e + 1) times its row."""

    def __init__(self, backends: list[NpuBackend]) -> None:
        self._backends = backends
        self._away: list[list[tuple[torch.Tensor, Choices, Away, torch.Tensor]]] = []

    def send(self, height: int) -> None:
        """``height`` rows of each attention die, routed by chance, zero experts among them."""
        self._away.append([])
        for die in SENDERS:
            backend = self._backends[die]
            x = torch.randint(-4, 5, (height, HIDDEN)).bfloat16()
            scores = torch.rand(height, EXPERTS + SPEC.zero_expert_num)
            weights, ids = scores.topk(TOPK)
            ids = ids.int()
            factors = torch.where(ids < EXPERTS, ids + 1, 1)
            expected = x.float() * (weights * factors).sum(1, keepdim=True)
            filled = backend.fill_choices(ids, weights, EXPERTS)
            away = backend.send_to_experts(x, filled.ids, EXPERTS, (), quantise=False)
            self._away[-1].append((x, filled, away, expected))

    def serve(self) -> None:
        """The next micro-batch on each FFN die."""
        for die in SERVERS:
            backend = self._backends[die]
            arrived = backend.wait_for_copies(LOCAL, HIDDEN, torch.bfloat16, ())
            received = backend.receive_copies(arrived)
            first = LOCAL * (die - SERVERS[0])
            factors = torch.repeat_interleave(torch.arange(LOCAL) + first + 1, received.counts)
            made = received.rows.clone()
            made[: len(factors)] *= factors[:, None]
            backend.send_back(made, received, ())

    def receive(self) -> None:
        """What was sent first comes back as expected."""
        for backend, (x, filled, away, expected) in zip(
            self._backends, self._away.pop(0), strict=False
        ):
            back = backend.wait_for_experts(away, HIDDEN, torch.bfloat16, ())
            rows = backend.receive_from_experts(back, away, x, filled)
            torch.testing.assert_close(rows.float(), expected, rtol=0.02, atol=0.5)


@pytest.mark.parametrize("numbers", [lambda expert: expert, lambda expert: expert % LOCAL])
def test_rows_come_back_as_their_experts_made_them(
    numbers: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = Dies(numbers)
    monkeypatch.setattr(direct_ops, "call", dies.call)
    order = GeOrder(load_hardware(DEPLOYMENT.hardware))
    backends, forms = [], []
    for rank in (*SENDERS, *SERVERS):
        place = place_of(DEPLOYMENT, rank)
        world = cast(World, SimpleNamespace(deployment=DEPLOYMENT, place=place, size=5))
        forms.append(Forms())
        context = dies.context(rank)
        tables = window_forms(WINDOWS, SPEC, world, "everyone", context, torch.Tensor.clone)
        forms[-1].bind_direct(tables)
        backends.append(NpuBackend(forms[-1], order, lambda _: "", Listener()))
    # Decode in micro-batches of unequal size, twice a pass; then chunks of prompts, one at a time.
    for rounds in ([(5, 3), (5, 3)], [(5,), (5,), (2,)], [(4, 4)]):
        with ExitStack() as stack:
            for backend, own in zip(backends, forms, strict=True):
                stack.enter_context(backend.issuing(own, order, Listener()))
            one = Pass(backends)
            for heights in rounds:
                for height in heights:
                    one.send(height)
                for _ in heights:
                    one.serve()
                for _ in heights:
                    one.receive()
