"""Bytes to requests and responses to bytes: frames, the table of APIs, and the two hot codecs.

`apis.py` says which APIs and versions a node advertises. Message types come from the library kio; Produce
and Fetch are read and written by hand. Nothing here knows partitions, topics or connections.

    frames.py           a stream of bytes cut into frames
    requests.py         the header of a request
    lengths.py          whether the lengths in a request can be true
    apis.py             the table of APIs and versions
    own.py              APIs that Kafka does not have
    entities.py         messages written once, sent in any version
    produce.py          Produce by hand; fetch.py: the response to Fetch by hand
    slices.py           large answers, encoded some items at a time
    reader.py           fields of Kafka's records
    subscription.py     what group members tell each other, as far as it is read
    partitioner.py      the partition of a key, as every Kafka client agrees
    names.py            the coordinator's partition of a name
    batches_decided.py  how the batches of a group of producers are counted
"""
