"""Topics kept for good: Parquet files, named by Iceberg tables, written by Spark.

    spans.py      which offsets are where, and what follows from it; pure
    storage.py    where files lie, and how they come to be safe there
    files.py      Parquet files of one partition's offsets: written, read, verified
    claims.py     what a snapshot says is archived
    tables.py     the table of a topic: its files, its offsets, commits
    catalog.py    where the tables are, one for each topic
    cleaning.py   files and snapshots that nobody needs any more
    logs.py       what the cluster has of a topic
    problems.py   what went wrong, topic by topic
    tasks.py      work that Spark shares out
    archiving.py  from the log into the table, in rounds
    checking.py   what is archived, and whether it is whole
    trimming.py   what the log may forget since the archive has it
    bridge.py     archive and log read as one
    changing.py   rows changed on their way into a topic
    restoring.py  from the archive back into a topic
    replaying.py  from a topic into another
    merging.py    small files of an archive, merged with their neighbours

Rule 1: what is archived is what the table's current snapshot says, and nothing else: no file beside
        it, no group's offset. A file counts once a snapshot names it.
Rule 2: a round is planned on one snapshot and committed onto that very snapshot, or not at all.
Rule 3: every file holds one stretch of one partition, in the order of offsets.
"""
