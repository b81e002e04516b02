"""Tables of Iceberg that many batches go to.

counting.py     as many rows in the files as Spark has written
commits.py      what every commit to a table shares
upkeep.py       what is done for a table after its commits
tiers.py        which small files become one
merging.py      makes them one
expiring.py     snapshots that are forgotten, and their files
    waiting.py      catalogs and stores that are away
    writing.py      files in object stores, which Spark does not reach by itself
"""
