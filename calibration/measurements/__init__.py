"""Published measurements as data: one CSV a source, in the project's own schema."""
