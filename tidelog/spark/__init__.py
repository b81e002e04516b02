"""Topics as tables of Spark, and the jobs that carry much at once. Comes with the extra `spark`.

    columns.py       the columns of a topic, and their types in Spark and in Arrow
    options.py       what users may ask for, checked
    ranges.py        offsets as Spark keeps them: parsed, limited, cut into tasks
    client_loop.py   one event loop and one client per process, for code that cannot await
    planning.py      where reading begins and ends, asked of the cluster
    reading.py       a range of offsets, as Arrow batches
    unpacking.py     batches of an answer: checked, chosen, unpacked
    boundaries.py    where each record begins
    varints.py       numbers of records, by the column
    decode.py        record batches to Arrow, without a loop over records
    gathering.py     pieces of bytes into one column
    encode.py        Arrow to record batches
    partitioning.py  which partition a row goes to, for many rows at once
    rows.py          what users see of a record, and what becomes one
    filters.py       filters of a query that the log can answer
    batch.py         a topic as a table that is read once
    streaming.py     and as a stream of micro-batches
    content.py       what some records are, in few numbers
    proofs.py        what a batch was, compared when it comes again
    placing.py       rows on their way into partitions
    writing.py       rows into topics, each exactly once
    source.py        the data source that Spark sees, of the parts above
    java.py          the Java that Spark runs on
    session.py       a session for our own jobs
    packing.py       an environment for executors elsewhere
    progress.py      how far a job of Spark is
    report.py        findings and plots as one page
    connect.py       sessions of a Spark Connect server
    entering.py      how a task begins to write
    json_reading.py  JSON values as columns, as Spark's `from_json` reads them
    json_times.py    times, dates and intervals in JSON
    json_tokens.py   JSON as tokens, as leniently as Spark's parser
    json_writing.py  columns as JSON objects, as Spark's `to_json` writes them
    positions.py     where a query is, as its checkpoint keeps it
    registered.py    keys and values of a schema registry, as columns
    showing.py       how far a query is, as offsets of a consumer group
    workers.py       the Python processes that Spark keeps
    leaving.py       how a Spark Connect session is left when its server is gone
    pipelines/       folders that say what is read, what becomes of it and where it goes
    archive/         topics kept for good
    audit/           every replica of every partition, compared
    analysis/        what is in a topic, and how it came

Rule 1: nothing here is imported by a node: brokers know no Spark.
Rule 2: whatever a task or a commit needs travels in values that can be pickled; Spark makes each
        reader and writer anew, in other processes, as often as it likes.
"""
