"""Run on the stand-ins: ranks that a command starts itself, each on an NPU of its own."""

import torch

from runtime_npu.parallel.launch import run_ranks


def device(job: str, rank: int) -> tuple[str, int, int, str]:
    torch.zeros(4, device="npu")
    ranks = torch.ones(1)
    torch.distributed.all_reduce(ranks)  # what lies on the host goes over Gloo
    assert ranks.item() == 2
    return job, rank, torch.npu.current_device(), str(torch.distributed.get_backend_config())


if __name__ == "__main__":
    print(run_ranks(device, "job", 2, on_npus=True))
