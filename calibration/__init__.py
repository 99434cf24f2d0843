"""The calibration loop: measurements, priors, the fit, the comparison.  Never imports torch."""
