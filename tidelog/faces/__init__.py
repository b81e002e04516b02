"""How people and programs reach a node: the Kafka and HTTP listeners, and the commands.

A face translates requests into calls of the broker and answers into bytes. It owns no state: whatever must
survive is a record of some partition. `node.py` puts a whole node together.

    kafka.py       the Kafka listener: connections, and nothing of what requests mean
    identities.py  what a node knows of users, and finds out about passwords
    node.py        a whole node: the broker and its faces
    notify.py      what a node tells systemd
    exposition.py  numbers in Prometheus's text format
"""
