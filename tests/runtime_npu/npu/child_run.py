"""Run on the stand-ins: `runtime_npu.run device=npu` as one rank of torchrun's, several times.

Argument: JSON with ``runs``, the words of each, and ``root``, the file system of a machine with
driver and CANN.  A run that begins with "flip" has a bit of this rank's main pass flipped first.

The stand-ins' kernels compute nothing, so that what they leave in memory says nothing: counts
that the host reads are made up, and logits are not looked at.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import torch

from runtime_npu import generate, run
from runtime_npu.backends.npu_prefill import NpuPrefill
from runtime_npu.npu import executor, place
from runtime_npu.npu_ops import NEEDED_OPS
from runtime_npu.standins.process import child_command
from twin.cli import run as run_command

asked = json.loads(sys.argv[1])
run.ROOT = Path(asked["root"])
run.PROBE = child_command("runtime_npu.machine.probe", NEEDED_OPS)
NpuPrefill._on_host = lambda self, sums: torch.ones(sums.shape, dtype=torch.int64)
# HCCL keeps the names that we give; the stand-ins number their communicators.
place.communicator_name = lambda group, rank: f"ep_{group.members[0]}_{group.members[-1]}"
generate._finite = lambda output: output

# GE compiles nothing here: its graphs answer with zeros in the shapes of what was traced.
# Communicators are said to take names, so that GE is told to keep what it compiles.
outputs = []
kept_outputs = {}
trace_pass = executor.trace_pass
kernel_of = executor.kernel_of


def traced_pass(*args):
    import_module("torch_npu.distributed")._is_support_hccl_comm_name = lambda: True
    import_module("torchair")
    import_module("torchair._ge_concrete_graph.compat_ir").is_cann_compat = lambda *_, **__: ""
    import_module("torchair.core._backend")._torchair.InitializeGraphEngine = lambda options: None
    traced, records = trace_pass(*args)
    (node,) = traced.graph.graph.find_nodes(op="output")
    outputs[:] = [value.meta["val"] for value in node.args[0]]
    return traced, records


def ge_kernel(code, folder):
    if "ge_graph" not in code:
        return kernel_of(code, folder)
    kept = kept_outputs.setdefault(folder, list(outputs))
    given = [torch.zeros(out.shape, dtype=out.dtype, device="npu") for out in kept]
    graph = import_module("torchair.ge._ge_graph").GeGraph

    def load(self, options, create_pg=False):
        assert options["ge.graph_compiler_cache_dir"] == str(folder)
        (folder / "graph.om").write_bytes(b"what GE compiled")

    graph.load = load
    graph.compile = lambda self: None
    kernel = kernel_of(code, folder)

    def call(*args):
        graph.run = lambda self, inputs, assigned=(), stream=None: list(given)
        return kernel(*args)

    return call


executor.trace_pass = traced_pass
executor.kernel_of = ge_kernel

port = int(os.environ["MASTER_PORT"])
for number, (first, *words) in enumerate(asked["runs"]):
    if first == "flip":
        (path,) = Path(asked["cache"]).glob(f"main/*/rank-{os.environ['RANK']}/*/pass.json")
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    os.environ["MASTER_PORT"] = str(port + number)
    out = f"output={asked['output']}/{number}/rank-{os.environ['RANK']}"
    print(f"run {number}:", file=sys.stderr, flush=True)
    code = run_command("run", run.RunOptions, run.main, ["device=npu", out, *words])
    if code:
        sys.exit(code)
