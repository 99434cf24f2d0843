"""The search: a stated space of schedules, swept in simulation."""
