"""What a node does for clients that do not speak Kafka: the services behind the HTTP face.

    services.py       all services of one node
    records.py        records written and read; packing.py packs those of one request
    joint_records.py  small requests of one turn of the loop, as one batch
    kv.py             buckets of keys; kv_state.py is what a leader decides on, kv_expiring.py deletes keys
    kv_work.py        what crosses between nodes of that
    queues.py         queues; queue_work.py crosses between nodes, queue_values.py reads messages
    pubsub.py         messages without a history
    copies.py         what copies outside of the cluster are sent
    replica_reads.py  a log as its leader has it
    promotion.py      an operator says who leads a partition

Rule: a service speaks in values, never in HTTP. It may touch the broker, the coordinators and this
node's views, never the handlers of Kafka's APIs.
"""
