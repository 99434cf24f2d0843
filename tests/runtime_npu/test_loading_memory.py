"""Loading takes the memory of the weights and little more."""

import subprocess
import sys
from pathlib import Path

from oracle import spec

from runtime_npu.random_checkpoint import make_checkpoint

CODE = """
import resource, sys
from pathlib import Path
import torch
from runtime_npu.backends.reference import ReferenceBackend
from runtime_npu.checkpoint import Checkpoint, load_weights
from runtime_npu.model.longcat import LongcatFlash
from twin.models import load_model

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

folder = Path(sys.argv[1])
spec = load_model(str(folder))
model = LongcatFlash(spec, ReferenceBackend())
with Checkpoint(folder, spec, "float32") as checkpoint:
    before = most()
    load_weights(model, checkpoint, torch.float32)
print(most() - before, sum(parameter.nbytes for parameter in model.parameters()))
"""


def test_peak_is_the_own_weights_and_ten_percent(tmp_path: Path) -> None:
    """Of the process, mapped files included."""
    large = spec(
        "large",
        hidden_size=512,
        num_layers=2,
        n_routed_experts=32,
        expert_ffn_hidden_size=512,
        ffn_hidden_size=1024,
    )
    make_checkpoint(tmp_path / "c", large, 0)
    command = [sys.executable, "-c", CODE, str(tmp_path / "c")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, own = map(int, ran.stdout.split())
    assert own > 2e8
    assert peak < 1.1 * own
