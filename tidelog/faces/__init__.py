"""How people and programs reach a node: the Kafka and HTTP listeners, and the commands.

A face translates requests into calls of the broker and answers into bytes. It owns no state: whatever must
survive is a record of some partition. `node.py` puts a whole node together.

    kafka.py       the Kafka listener: connections, and nothing of what requests mean
    tls.py         certificates of the listeners, and those of their clients
    identities.py  what a node knows of users, and finds out about passwords
    first_user.py  the user that a cluster begins with
    intake.py      how much of the node's memory their requests take
    node.py        a whole node: the broker and its faces
    notify.py      what a node tells systemd
    permissions_page.py  what every request needs, as a page
    exposition.py  numbers in Prometheus's text format
"""
