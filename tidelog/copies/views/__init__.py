"""State that is derived from logs and can be asked: SQLite files, each a fold of one partition.

    store.py    a view on disk, and how far it follows its log
    kv.py       key-value: the newest value of every key; what is written and not committed
    checks.py   checksums of rows, so that rot is found

Rule: nothing durable lives only here. A view can be thrown away at any moment, and is made again.
It may touch records and errors, no socket and no node.
"""
