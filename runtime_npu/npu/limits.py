"""Limits that are no tensor's: cores of a stream."""

from __future__ import annotations

from hardware_models.hardware import Hardware
from runtime_npu.npu.contract import Contract


def check_core_limit(aic: int, aiv: int, hardware: Hardware) -> None:
    """A core limit is within the die; nothing in torch_npu or torchair looks.

    Raises:
        InputError: it is not.
    """
    check = Contract("limit_core_num")
    check.within("op_aicore_num", aic, 1, hardware.count("aic_count"))
    check.within("op_vectorcore_num", aiv, 1, hardware.count("aiv_count"))
