"""Run on the stand-ins: make the step profiler of the real wheel, and say what it will do."""

import json
import sys
from pathlib import Path

import torch_npu  # noqa: F401

from runtime_npu.npu.profiler import step_profiler

profiler = step_profiler(Path(sys.argv[1]), 3)
config = profiler.prof_if.experimental_config
config()  # what the C++ side takes
said = {
    "level": config._profiler_level,
    "metrics": config._aic_metrics,
    "export": config.export_type,
    "actions": [profiler.schedule(step).name for step in (0, 1, 5000)],
    "activities": sorted(activity.name for activity in profiler.prof_if.activities),
}
print(json.dumps(said))
