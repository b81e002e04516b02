"""The HTTP face: health, and the cluster as one document.

    listener.py     the socket, from the first moment of a start; cheap to import
    server.py       the edge's server, with the node's application and settings
    edge/           connections, requests, answers, routes and sockets; it knows nothing of nodes
    app.py          the node's application: routes, request ids, limits, errors
    cors.py         what pages of other origins may do
    api.py          operations as a table; sockets.py: WebSockets in it
    pacing.py       the loop shared between requests and others
    paging.py       long lists, page by page
    problems.py     errors as application/problem+json (RFC 9457)
    health.py       whether a node can serve, and why not
    cluster.py      GET /v1/cluster, built in slices
    replication.py  GET /v1/replication and /metrics, built in slices
    standing.py     how replicas stand, in one word each; faces/compatibility tells it to
                    clients that know masters and replicas
    operations.py   what an operator tells a node: who leads, and to stop
    admin/          all else that operators do: groups, brokers, settings, moves, transactions

Rule 1: it runs in the node's own event loop and owns no state. Nothing in it may keep the loop for
        more than a few milliseconds: Kafka's clients wait meanwhile.
Rule 2: the edge and the application are imported by the first connection, in a thread; a node whose HTTP
        face nobody uses pays for a socket and nothing else.
Rule 3: every error is a problem document that says what to do, with the id of the request.
"""
