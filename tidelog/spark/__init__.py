"""Topics as tables of Spark, and the jobs that carry much at once. Comes with the extra `spark`.

    columns.py       the columns of a topic, and their types in Spark and in Arrow
    options.py       what users may ask for, checked
    ranges.py        offsets as Spark keeps them: parsed, limited, cut into tasks
    asking.py        one event loop and one client per process, for code that cannot await
    planning.py      where reading begins and ends, asked of the cluster
    reading.py       a range of offsets, as Arrow batches
    decode.py        record batches to Arrow, without a loop over records
    encode.py        and back
    partitioning.py  which partition a row goes to, for many rows at once
    writing.py       rows into topics, each exactly once
    source.py        the data source that Spark sees, of the parts above
    session.py       a session for our own jobs

Rule 1: nothing here is imported by a node: brokers know no Spark.
Rule 2: whatever a task or a commit needs travels in values that can be pickled; Spark makes each
        reader and writer anew, in other processes, as often as it likes.
"""
