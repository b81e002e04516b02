"""What operators ask of a cluster: one table of verbs, and who performs them.

    verbs.py         a row: name, parameters, answer, permission, danger, and the function that does it
    desk.py          performs a verb, here or on the node that can; every verb of every face passes here
    values.py        parameters and answers that several families share; pages of long lists
    topics.py        topics: listed, described, created, changed, deleted
    configs.py       settings of topics and brokers
    elections.py     elections
    promotions.py    a replica that is to lead, planned or by force
    moves.py         replicas that move
    brokers.py       brokers: listed, drained, stopped, removed
    quorum.py        the nodes that keep the cluster's metadata
    groups.py        consumer groups; offsets.py finds the ends of logs for them
    group_coordinators.py  what their coordinators do for them
    transactions.py  transactional ids, and transactions that are aborted
    acls.py          permissions and denials, and what decides a question
    users.py         users, and what is stored of their passwords
    tokens.py        what programs show over HTTP to say for which user they ask
    table.py         all rows
    reference.py     the page of all verbs

The HTTP operation of a verb, its description, the request of the commands and the reference page
(`docs/verbs.md`) are derived from its row.

Rule 1: a verb is written once. What a face adds is a form: a path, a table on a terminal.
Rule 2: a verb works on the broker's own services. It opens no connection; another node is asked
        over the link between nodes.
Rule 3: parameters and answers are values (msgspec structs): a verb that another node performs does
        exactly what it would do here.
"""
