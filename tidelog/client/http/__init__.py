"""The client of the HTTP face: decisions in one place, and two thin drivers.

    values.py     what calls take and give
    errors.py     what can go wrong, by name
    effects.py    what decisions ask the world to do
    routes.py     which node a request goes to
    tokens.py     how far a bucket was seen
    sse.py        server-sent events: bytes in, events out
    core.py       a request until it is answered, a stream until it ends
    kv.py, topics.py, queues.py, pointer_queues.py, rooms.py, replication.py, admin.py
                  what each call asks, as plans
    transport.py  what the drivers share of httpx
    surface.py    plans as methods
    blocking.py   Client, derived from awaiting.py
    awaiting.py   AsyncClient

Rule 1: only the last four know httpx, and only the last two wait for anything.
Rule 2: a method of one client is the same plan as that of the other.
"""
