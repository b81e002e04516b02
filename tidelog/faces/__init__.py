"""How people and programs reach a node: the Kafka and HTTP listeners, and the commands.

A face translates requests into calls of the broker and answers into bytes. It owns no state: whatever must
survive is a record of some partition. `node.py` puts a whole node together.
"""
