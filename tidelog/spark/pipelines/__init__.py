"""Pipelines: a folder says what is read, what becomes of it and where it goes; Spark does it.

    spec.py        pipeline.yaml as checked values
    tables.py      sources and steps, as tables of a session
    sinks.py       tables into topics, buckets, folders and Iceberg tables
    iceberg.py     one batch of rows into an Iceberg table, once
    topics.py      the topics of a pipeline, made where they are missing
    progress.py    what Spark reports of a query, in our words
    state.py       who runs a pipeline, and how far it is
    running.py     all queries of a pipeline, from their start to their end
    showing.py     progress for people and for programs
    folders.py     a new pipeline, of the sample
    orders.py      orders that the sample reads: some late, some broken

Rule 1: a sink is one query with one checkpoint, named as the sink: it goes on where it was, and
        what it wrote is written once, wherever it was killed.
Rule 2: all of a folder is checked before anything starts; an error names the file, the key and
        the fix.
"""
