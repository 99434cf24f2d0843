"""The plain roofline: bytes and MACs at nominal rates, nothing else.

Only a collective's bytes keep their fitted cost: its protocols have no nominal rate.

It is a baseline of the fit, and it tells a time in another unit from a fast kernel.
"""

from __future__ import annotations

from calibration.kernel import KernelRow
from calibration.limits import HBM_NOMINAL_GBPS
from hardware_models.hardware import Hardware

# Operands may lie in L2 (three to four times as fast as HBM), and a row's shapes may count
# bytes that its kernel never touches: no published row is below a fifth of its roofline.
_FASTER_THAN_ROOFLINE = 20.0


def shortest_us(row: KernelRow, hardware: Hardware) -> float:
    """No time below this can be the row's kernel in us: it would be in ms, or another kernel."""
    return row.predicted_us(ideal(hardware)) / _FASTER_THAN_ROOFLINE


def ideal(hardware: Hardware) -> Hardware:
    """The die without overheads, all bytes at HBM's nominal rate: what a roofline knows."""
    values: dict[str, float] = {}
    for parameter in hardware:
        name = parameter.name
        if name.endswith("_efficiency"):
            values[name] = 1.0
        elif name.endswith(("_gbps", "_gbps_bf16")) and not name.startswith(
            ("l2", "hbm_per", "link", "sdma")
        ):
            values[name] = HBM_NOMINAL_GBPS
        elif name.endswith("_factor") or name == "unaligned_cube_factor":
            values[name] = 1.0
        elif name.endswith("_power"):
            values[name] = 0.0
        elif name.startswith(("hbm_per", "l2")):
            values[name] = 1e6 if "per_ai" in name else parameter.value
        elif parameter.unit.startswith("us") and not name.endswith(("us_per_mb", "per_row")):
            values[name] = 1e-9
    return hardware.with_values(values)
