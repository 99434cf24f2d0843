"""Windows of direct transfers against what the real wheel makes of the same numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from runtime_npu.standins.process import run_on_standins
from twin.deployment import Role
from twin.windows import Windows

ROLES: tuple[Role, Role] = ("attention", "ffn")
CASES = [
    Windows(attention, micro_batches, rows, choices, hidden, element_bytes)
    for attention, micro_batches, rows, choices, hidden, element_bytes in (
        (64, 1, 12, 12, 6144, 1),
        (3, 3, 6, 8, 7168, 1),
        (4, 2, 5, 3, 1024, 2),
        (1, 1, 1, 1, 6144, 2),
    )
]


@pytest.mark.usefixtures("standins")
def test_flags_and_slots_lie_where_torch_npu_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = run_on_standins("child_windows", [json.dumps([asdict(case) for case in CASES])])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for (case, role), told in zip(
        [(case, role) for case in CASES for role in ROLES], found, strict=True
    ):
        flags = case.flags_shape(role)
        size = 4
        for axis in flags:
            size *= axis
        assert told["flags"] == size
        assert told["slots_begin"] == case.flags_bytes(role)
        assert told["slots"] == case.window_bytes(role) - case.flags_bytes(role)
        assert told["context"] == [1024, "torch.int8"]
        # The first wait is for micro-batch 0: a context holds the one before.
        assert told["micro_batch"] == (case.micro_batches - 1 if role == "attention" else None)


def test_a_window_of_the_recipes_ffn_die() -> None:
    """64 dies x 12 rows x 12 copies of 6144 int8 values, each in 6656 B, behind 37,376 B."""
    recipe = CASES[0]
    assert recipe.window_bytes("ffn") == 64 * 144 * 6656 + 37376
    assert recipe.window_bytes("attention") == 144 * 12288 + 1024
    assert recipe.slots_shape("ffn") == (64, 1, 12, 12, 6656)
    assert recipe.slots_shape("attention") == (1, 12, 12, 6144)
