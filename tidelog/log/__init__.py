"""One partition's bytes on one disk: segments, indexes, epochs, producers, recovery, retention.

A log knows nothing of replication, leaders or clients: it appends batches, reads them, cuts its tail,
deletes old segments and rewrites compacted ones. Files are in Kafka's own formats. It touches disks only
through `tidelog.host`, and appends never wait for one.
"""
