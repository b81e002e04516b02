"""Endpoints kept for clients of older systems: masters and replicas, queues with pointers, a proxy.

    replication_health.py    `GET /health/replication` of a master or a replica
    replication_metrics.py   the numbers of a master and its replicas
    replication_storage.py   `/api/v1/storage/...`, of brokers that pushed to their followers
    pointer_queues.py        queues that keep a pointer for each client
    proxy/                   one address in front of several clusters with such queues

Rule: nothing else depends on these, but where the HTTP face lists its operations and its commands start
the proxy. They may touch what any face may: the broker, the services, the HTTP face's own tools.
"""
