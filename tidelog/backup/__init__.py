"""Backups: what a cluster holds, in files, and back into an empty cluster.

    manifest.py          what one backup consists of; a backup is there once its manifest is
    storage.py           where its files are: a directory, or whatever fsspec reaches
    chunks.py            files of batches, as the log had them
    planning.py          which offsets are new since the last backup; pure
    cluster_requests.py  what is asked of the cluster
    creating.py          a backup is made
    kept.py              the backups in a place: found, and removed
    checking.py          a backup is read to its last byte
    batches.py           batches on their way back into a log; pure
    restoring.py         a backup is written into a cluster
    comparing.py         what the cluster has then, record by record
    running.py           threads and lanes, and how they end
    existing.py          topics that exist when a backup is restored
    problems.py          what can be wrong with backups, for people

Rule 1: nothing of a backup changes once its manifest is there. The next one names the files of
        those before it, and adds what is new.
Rule 2: a backup has what a reader of committed records would have been given, and nothing else.
Rule 3: records come back at the offsets that they had: a key's version, a queue's pointers and a
        group's offsets mean the same as before.
"""
