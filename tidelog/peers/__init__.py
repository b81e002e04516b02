"""How the nodes of a cluster talk to each other: one listener, and one link to each peer.

A link carries requests and answers of any kind, numbered, over one connection; it reconnects, and says when
a peer is gone. It does not know what the messages mean: rooms above register their kinds and handlers.

    link.py      the way to one peer: connect, ask, notice when it is gone
    breaker.py   whether a peer may be tried now
    listener.py  where peers connect
    stream.py    one connection, from either side
    handshake.py how two nodes prove that they have the cluster's secret, and seal what they say
    wire.py      the bytes on it
"""
