"""The client's half of copies: `EmbeddedReplica`, a copy of buckets and queues inside of a program.

`replica.py` names its neighbours; docs/embedded.md teaches it. Users import it from `tidelog.client`.

Rule: it may touch the Python client of the HTTP face, `views/`, `stream/`, and records; nothing of a node.
"""
