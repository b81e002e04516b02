"""A whole cluster in one process: the doors of `tidelog.host`, seeded, fast and hostile."""
