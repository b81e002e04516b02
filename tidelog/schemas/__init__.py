"""Records whose form a schema registry knows: framing, subjects, the registry's REST API, codecs.

Rule: everything here is pure but for `registry`, which asks over HTTP.

    table.py               the formats: one row each, from which all else is derived
    formats.py             how users name a format
    framing.py             how a record names its schema; subjects.py: the name in the registry
    registry.py            the registry's REST API
    codec.py               what a format does with one schema
    values.py              single keys and values as JSON for people
    documents.py           JSON for what JSON has no types for; fitting.py: columns in a schema's types
    problems.py            what can be wrong, and what to do
    avro.py                Avro: values; avro_types.py: as Arrow's types; avro_documents.py: typed JSON;
                           avro_items.py: what a payload costs
    json_schema.py         JSON Schema: values; json_types.py: as Arrow's types; json_cost.py: cost of a check
    protobuf.py            Protobuf: messages; protobuf_types.py: as Arrow's types;
                           protobuf_columns.py: as columns; protobuf_documents.py: what JSON would lose;
                           protobuf_sizes.py: how large a payload becomes; protoc.py: schemas compiled
"""
