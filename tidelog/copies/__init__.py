"""Copies of logs as SQLite files that can be asked: on nodes, and in programs outside of the cluster.

    views/     the files, each a fold of one partition; used by both halves
    stream/    what nodes and copies outside of the cluster say to each other
    node/      the node's half: the views of its own replicas
    embedded/  the client's half: `EmbeddedReplica`

Rule: the halves do not import each other. `views/` and `stream/` know neither sockets nor nodes,
`node/` may touch the broker, `embedded/` the Python client.
"""
