"""What copies outside of the cluster and nodes say to each other.

    protocol.py   the messages of the replication stream
    kinds.py      what a copy keeps, by kind of source

Rule: both ends import this; it knows neither sockets nor nodes.
"""
