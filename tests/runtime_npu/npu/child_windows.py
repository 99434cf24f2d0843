"""Run on the stand-ins: what torch_npu's schedule contexts make of windows, as JSON.

Argument: JSON, a list of the fields of :class:`twin.windows.Windows`.
"""

import json
import re
import sys

import torch
import torch_npu  # noqa: F401

from runtime_npu.npu.windows import schedule_context
from twin.windows import Windows

found = []
memory = torch.zeros(2**26, dtype=torch.int8, device="npu")
for fields in json.loads(sys.argv[1]):
    windows = Windows(**fields)
    for role in ("attention", "ffn"):
        holder = schedule_context(windows, 512, role, memory)
        text = holder.get_schedule_context_info()
        told = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}
        tensor = holder.get_schedule_context_tensor()
        found.append(
            {
                "flags": told["token_info_buf_size"],
                "slots_begin": told["token_data_buf"] - memory.data_ptr(),
                "slots": told["token_data_buf_size"],
                "micro_batch": told.get("micro_batch_id"),
                "context": [*tensor.shape, str(tensor.dtype)],
            }
        )
print(json.dumps(found))
