"""Configuration, models and schedules that the package ships: data only."""
