"""What was believed about fitted parameters before the fit: one YAML a die."""
