"""`python -m runtime_npu.standins`: fetch the real torch_npu wheel and build the stand-ins."""

from __future__ import annotations

import sys

from hardware_models.errors import MachineError
from runtime_npu.standins.build import built_standins
from runtime_npu.standins.wheel import fetch_wheel


def main() -> int:
    """Prepare what the dry run needs; the exit code."""
    try:
        print(f"torch_npu: {fetch_wheel()}")
        print(f"stand-ins: {built_standins()}")
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
