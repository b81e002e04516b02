"""One partition's bytes on one disk: segments, indexes, epochs, producers, recovery, retention.

A log knows nothing of replication, leaders or clients: it appends batches, reads them, cuts its tail,
deletes old segments and rewrites compacted ones. Files are in Kafka's own formats. It touches disks only
through `tidelog.host`, and appends never wait for one.

What a partition asks of its log

    log.py             one log: appended in memory, synced in rounds, read, cut
    tail.py            the newest bytes of all logs, in memory
    reading.py         one read: from the tail, from files, over gaps; damage is told
    steps.py           what a log asks of the disk, as values, and who carries it out
    rounds.py          group commit: one write and one sync for many logs
    search.py          offsets by time

Files

    directory.py       the data directory: whose it is, how it was left, which logs it holds
    segment.py         one file of records with its indexes; index.py: the sparse indexes
    checkpoints.py     small text files: offsets of all logs, epochs of one
    epochs.py          which leader wrote which part of the log
    producers.py       idempotent producers: sequences, repeats, gaps
    transactions.py    which transactions are decided, and the last stable offset
    aborted.py         the aborted ones; committed.py: the batches that a committed read shows
    truncation.py      the end cut off; cut_notes.py: notes of where starts have cut

Starts and stops

    closing.py         what an orderly stop leaves, so that the next start scans nothing
    recovery.py        from files to a log: what to trust, cut, or refuse to cut
    scan.py            which batches of an active segment are whole after a crash
    epoch_recovery.py  the epoch history that a start finds

Housekeeping

    retention.py       which segments are old enough to go
    cleaner.py         which logs are compacted, when, and how far
    compaction.py      the blocking half; keymap.py: the newest record of each key, in bounded memory
    unpacking.py       records inside of a batch, and the batch without some of them
    purges.py          the tombstones and markers that compaction has removed for good
    swap.py            compacted segments take the place of old ones, whole at any crash
    scrub.py           sealed segments read again; scrub_cycle.py: in which order, and what was found
    same_batch.py      rot in compacted logs, healed where a replica has the very batch
    disk_room.py       whether the disk has room and files can be opened
    reserve.py         room kept for the writes by which a node survives a full disk
"""
