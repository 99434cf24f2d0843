"""Planning: how much a deployment serves, whether MTP pays, whether AFD does."""
