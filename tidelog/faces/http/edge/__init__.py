"""The HTTP edge: from bytes to a request, and from an answer to bytes.

    bodies.py      what large bodies and messages may take of memory, all together
    messages.py    requests and answers, as handlers see them
    routes.py      which row of a table serves a path
    connection.py  one HTTP connection, on httptools' parser
    handshake.py   what opens a WebSocket
    sockets.py     one WebSocket, on websockets' protocol without I/O
    server.py      all connections, and how they end

Rule 1: the edge knows nothing of logs, topics or nodes: it serves an application (`server.App`),
        and the proxy's as well as a node's.
Rule 2: what a client may take of memory is bounded here, or passed on as a bound.
Rule 3: a request that does not wait costs no task: its handler runs where its bytes were read.
"""
