"""Run on the stand-ins: every case on the real wheel; prints what it gives.

``fake`` asks the wheel's shape functions, ``host`` runs its host code, which launches nothing.
"""

import json
import sys
from contextlib import nullcontext
from dataclasses import fields, is_dataclass

import op_cases
import torch
import torch_npu  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode

is_fake = sys.argv[1] == "fake"
results = {}
with FakeTensorMode() if is_fake else nullcontext():
    cases = op_cases.calls(
        lambda *sizes, dtype=torch.bfloat16: torch.empty(*sizes, dtype=dtype, device="npu")
    )
    for name, (function, arguments) in cases.items():
        if "on the device" in name and not is_fake:
            continue  # a graph's form of the op, which has no other
        given = function(**arguments)
        if is_dataclass(given):
            given = tuple(getattr(given, field.name) for field in fields(given))
        outputs = given if isinstance(given, tuple) else (given,)
        results[name] = [
            [list(x.shape), str(x.dtype).removeprefix("torch.")]
            for x in outputs
            if isinstance(x, torch.Tensor)
        ]
        if isinstance(given, int):
            results["prefetched bytes"] = given
print(json.dumps(results))
