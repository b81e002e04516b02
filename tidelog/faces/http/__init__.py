"""The HTTP face: operators' verbs, records, keys, queues and streams over HTTP, health and metrics.

The server

    listener.py     the socket, from the first moment of a start; cheap to import
    server.py       the edge's server, with the node's application and settings
    edge/           connections, requests, answers, routes and sockets; it knows nothing of nodes
    app.py          the node's application: routes, request ids, limits, errors
    api.py          operations as a table; sockets.py: WebSockets in it
    permissions.py  what an operation needs, as a part of its row
    openapi.py      the description of that table, OpenAPI 3.1; docs.py: a page that shows it
    guard.py        who is let in: by which name, from which page, with what proof
    cors.py         what pages of other origins may do
    pacing.py       the loop shared between requests and others
    problems.py     errors as application/problem+json (RFC 9457)

For operators

    verbs.py        operations made of the table of verbs; topics.py: what of topics is more than a row
    paging.py       long lists, page by page
    health.py       whether a node can serve, and why not; probes.py: /health/live and /health/ready
    cluster.py      GET /v1/cluster, built in slices
    replication.py  GET /v1/replication and /metrics, built in slices; scrub.py: the scrubber's part
    standing.py     how replicas stand, in one word each; faces/compatibility tells it to
                    clients that know masters and replicas

For users

    records.py      records written and read; streams.py: as they come; schemas.py: by a registry's schemas
    kv.py           keys with versions; watching.py: their changes as they come
    queues.py       work queues
    rooms.py        rooms with a history; pubsub.py: messages without one
    push.py         events pushed to one client, over server-sent events or a WebSocket
    replicate.py    the replication stream; replicate_live.py: pub/sub over it
    writes.py       what every write takes: safety, time-out, Idempotency-Key
    values.py       keys and values in JSON

Rule 1: it runs in the node's own event loop and owns no state. Nothing in it may keep the loop for
        more than a few milliseconds: Kafka's clients wait meanwhile.
Rule 2: the edge and the application are imported by the first connection, in a thread; a node whose HTTP
        face nobody uses pays for a socket and nothing else.
Rule 3: every error is a problem document that says what to do, with the id of the request.
"""
