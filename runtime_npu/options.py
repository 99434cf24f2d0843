"""Options of a run, as the command line gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "npu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run takes; see ``--help``."""

    schedule: str
    model: str | None = None
    checkpoint: str | None = None
    make_checkpoint: str | None = None
    prompt_ids: tuple[tuple[int, ...], ...] | None = None
    prompts: tuple[str, ...] | None = None
    max_new_tokens: int = 32
    cache_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    device: Device = "cpu"
    seed: int = 0
    profile: bool = False
    warmup_steps: int | None = None
    compile_cache: str | None = None
