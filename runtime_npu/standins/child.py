"""`python -m runtime_npu.standins.child MODULE ...`: a module on the stand-ins.

:mod:`runtime_npu.standins.process` starts it; nothing else should.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

from runtime_npu.standins.build import RUNTIME

FOLDER = "STANDIN_FOLDER"
"""Environment variable with the folder of the libraries."""


def load(folder: Path) -> None:
    """Load all stand-ins, so that torch_npu's libraries find them by name."""
    libraries = sorted(folder.glob("*.so"), key=lambda path: path.name != RUNTIME)
    for path in libraries:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


if __name__ == "__main__":
    load(Path(os.environ[FOLDER]))
    module, *rest = sys.argv[1:]
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
