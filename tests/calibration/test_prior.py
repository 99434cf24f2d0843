"""Files of priors."""

from __future__ import annotations

import pytest

from calibration.prior import Z80, Prior, shipped_priors
from hardware_models.errors import InputError
from hardware_models.hardware import load_hardware


def test_every_prior_is_of_a_parameter_of_the_die() -> None:
    priors, hardware = shipped_priors("a3-752t"), load_hardware("a3-752t")
    assert set(priors) <= set(hardware.parameters)
    assert all(prior.source for prior in priors.values())


def test_the_range_is_read_as_an_80_percent_interval() -> None:
    prior = Prior(centre=5.0, range=(4.0, 6.0), source="test")
    assert prior.deviation == pytest.approx(1 / Z80)


def test_a_die_without_priors_is_refused() -> None:
    with pytest.raises(InputError, match="no-such-die"):
        shipped_priors("no-such-die")
