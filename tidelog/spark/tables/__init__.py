"""Tables of Iceberg that many batches go to.

layout.py       how rows are split into files and sorted: `partition_by`, `sort_by`
evolving.py     columns that follow the source's
batches.py      the files of a batch
splitting.py    rows of a task, by partition
writing.py      files that tasks write, where Spark cannot
counting.py     as many rows in the files as Spark has written
commits.py      what every commit to a table shares
notes.py        which batches a table has
upkeep.py       what is done for a table after its commits
tiers.py        which small files become one
merging.py      makes them one
expiring.py     snapshots that are forgotten, and their files
reading.py      files as rows of Spark, where Spark reaches no store; projecting.py: in the table's columns
opening.py      catalogs, also when two processes open a new one at once
waiting.py      catalogs and stores that are away
"""
