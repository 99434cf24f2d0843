"""Limits that are no tensor's: cores of a stream, and HCCL's buffer."""

from __future__ import annotations

from hardware_models.hardware import Hardware
from runtime_npu.npu.contract import Contract
from twin.memory import exchange_buffer_mib


def check_core_limit(aic: int, aiv: int, hardware: Hardware) -> None:
    """A core limit is within the die; nothing in torch_npu or torchair looks.

    Raises:
        InputError: it is not.
    """
    check = Contract("limit_core_num")
    check.within("op_aicore_num", aic, 1, hardware.count("aic_count"))
    check.within("op_vectorcore_num", aiv, 1, hardware.count("aiv_count"))


def check_buffer(
    given_mib: int, *, local_experts: int, rows: int, ranks: int, hidden: int, topk: int
) -> None:
    """HCCL_BUFFSIZE holds what dispatch and combine exchange.

    On hardware too small a buffer shows as an access out of range long after start-up.

    Raises:
        InputError: it does not.
    """
    needed = exchange_buffer_mib(
        local_experts=local_experts, rows=rows, ranks=ranks, hidden=hidden, topk=topk
    )
    Contract("npu_moe_distribute_dispatch_v2").holds(
        given_mib >= needed, "HCCL_BUFFSIZE", f"{given_mib} MB", f"at least {needed} MB"
    )
