"""One replicated log: its machines, and the driver that joins a machine to a `Log`."""
