"""Profiles of the property tests: a quick one by default, a long one at night."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Machines differ in speed, so no example has a deadline.  The default profile tries the same
# examples every time: chance belongs in the nightly run, not in a gate.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=40, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=1000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
