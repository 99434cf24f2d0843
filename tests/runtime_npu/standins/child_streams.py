"""Run on the stand-ins: two streams with an event and a limit between them."""

import torch
import torch_npu

x = torch.zeros(4, 256, dtype=torch.bfloat16, device="npu")
side, event = torch.npu.Stream(), torch.npu.Event()
y = torch_npu.npu_swiglu(x)
event.record()
torch.npu.set_stream_limit(side, 8, 16)
with torch.npu.stream(side):
    event.wait()
    torch_npu.npu_dynamic_quant(y)
print(tuple(y.shape), float(x.cpu().float().sum()))
