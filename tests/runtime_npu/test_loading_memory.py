"""Loading takes the memory of the rank's own weights and little more."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from layouts import afd, colocated
from oracle import spec

from benchmarks.process import peak_mb
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.model.ffn import FfnDie
from runtime_npu.model.longcat import LongcatFlash
from runtime_npu.parallel.launch import run_ranks
from runtime_npu.parallel.world import World
from runtime_npu.plan import PLAIN
from runtime_npu.random_checkpoint import make_checkpoint
from twin.deployment import Deployment

LARGE = spec(
    "large",
    num_attention_heads=4,
    hidden_size=512,
    num_layers=4,
    n_routed_experts=16,
    expert_ffn_hidden_size=512,
    ffn_hidden_size=4096,
    vocab_size=96,
)
DEPLOYMENTS = {
    "one die": colocated(1),
    "split": colocated(2, o_proj_tp=2, dense_tp=2, lm_head_tp=2, embed_tp=2),
    "heads": colocated(2, attention_tp=2, o_proj_tp=2),
    "afd": afd(1, 1),
}


@dataclass(frozen=True)
class Loading:
    """A checkpoint, and the deployment whose ranks load it."""

    folder: Path
    deployment: Deployment


def load(job: Loading, rank: int) -> tuple[float, float]:
    """What the rank's process grew by at most, and the rank's own weights, in MB."""
    world = World(job.deployment, rank)
    kind = FfnDie if world.place.role == "ffn" else LongcatFlash
    model = kind(LARGE, ReferenceBackend(), PLAIN, world)
    with Checkpoint(job.folder, LARGE, "float32") as checkpoint:
        # From here on the peak, mapped files included, is that of what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_mb()
        load_weights(model, checkpoint, torch.float32)
        grown = peak_mb() - before
    return grown, sum(weight.nbytes for weight in model.parameters()) / 1e6


@pytest.mark.parametrize(
    "name",
    ["one die", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("split", "heads", "afd"))],
)
def test_peak_is_the_own_weights_and_ten_percent(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", LARGE, 0)
    deployment = DEPLOYMENTS[name]
    for grown, own in run_ranks(load, Loading(tmp_path / "c", deployment), deployment.total_dies):
        assert own > 190
        assert 0.9 * own < grown < 1.1 * own
