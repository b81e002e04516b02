"""Fuzzers: bytes nobody sane would send or store, and the promises that must hold for them.

    python -m fuzz                       # all of them, a minute together
    python -m fuzz recovery --seconds 60 --seed 7
    python -m fuzz recovery --replay fuzz-recovery-7-123.case

Rule 1: a case is bytes. `make` draws it from a generator, `check` knows nothing else, so a failing
        case is replayed from its file, on any day and without its seed.
Rule 2: the same seed makes the same cases; no check looks at a real clock.
Rule 3: a case is written to its file before it is checked, for some failures end the process.
"""
