"""A whole cluster in one process: the doors of `tidelog.host`, seeded, fast and hostile.

Nodes run unchanged; their clocks, disks, networks, threads and random numbers are simulated, and one seed
decides everything that happens. Stories say which clients run and which faults strike; watchers check
what must always hold. docs/simulation.md is the guide.
"""
