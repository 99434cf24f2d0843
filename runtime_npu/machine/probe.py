"""`python -m runtime_npu.machine.probe OP ...`: what torch_npu sees, as one line of JSON.

A process of its own, because a broken driver may end or hang the one that asks it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any


def probe(ops: Sequence[str]) -> dict[str, object]:
    """Devices with their free HBM and cores, and those of ``ops`` that torch_npu lacks."""
    torch: Any = import_module("torch")
    import_module("torch_npu")  # which adds torch.npu and the ops

    devices = []
    for index in range(torch.npu.device_count()):
        free, total = torch.npu.mem_get_info(index)
        properties = torch.npu.get_device_properties(index)
        devices.append(
            {
                "name": properties.name,
                "free_bytes": free,
                "total_bytes": total,
                "aic": properties.cube_core_num,
                "aiv": properties.vector_core_num,
            }
        )
    missing = [name for name in ops if not hasattr(torch.ops.npu, name)]
    return {"devices": devices, "missing_ops": missing}


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1:])))
