"""Pipelines: a folder says what is read, what becomes of it and where it goes; Spark does it.

    spec.py        pipeline.yaml as checked values
    expressions.py the SQL that tables and sinks are made with; pure
    tables.py      sources and steps, as tables of a session
    sinks.py       tables into topics, buckets, folders and Iceberg tables
    iceberg.py     one batch of rows into an Iceberg table, once
    topics.py      the topics of a pipeline, made where they are missing
    progress.py    what Spark reports of a query, in our words
    state.py       who runs a pipeline, and how far it is
    running.py     all queries of a pipeline, from their start to their end
    folders.py     a new pipeline, of the sample
    sample/        the files of that
    orders.py      orders that the sample reads: some late, some broken
    beside.py      a cluster, and a pipeline beside it: `make run`
    delta.py       Delta tables without a jar; delta_parts.py is their partitions
    delta_disk.py  Delta tables on a local disk, synced
    delta_widening.py  Delta tables whose columns become wider
    documents.py   values of a YAML document, checked one by one
    formats.py     options for keys and values of a schema registry
    registered_samples.py  sample rows whose schemas a registry knows
    samples.py     sample rows, and what must come out of them
    sharing.py     places that executors on other machines cannot reach
    shipping.py    a pipeline's Python files, sent to executors
    trying.py      a pipeline on sample rows
    upserts.py     changes into a table with one row for each key

Rule 1: a sink is one query with one checkpoint, named as the sink: it goes on where it was, and
        what it wrote is written once, wherever it was killed.
Rule 2: all of a folder is checked before anything starts; an error names the file, the key and
        the fix.
"""
