"""Dies as parameters, and what each op kind demands of one.  Never imports torch."""
