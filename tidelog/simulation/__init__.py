"""A whole cluster in one process: the doors of `tidelog.host`, seeded, fast and hostile.

Nodes run unchanged; their clocks, disks, networks, threads and random numbers are simulated, and one seed
decides everything that happens. Stories say which clients run and which faults strike; watchers check
what must always hold. docs/simulation.md is the guide.

The world

    world.py       a cluster in one process; nodes.py: the real node in it; machine.py: what outlives it
    breaking.py    what can be broken of it: processes, machines, network, disks, clocks
    loop.py        virtual time; host.py, offload.py: the doors of a host, from a seed
    disk.py        a disk that keeps only what it promised; inode.py: one file of it
    network.py     byte streams between hosts; connection.py: one of them
    layout.py      who votes, who stands in which rack
    trace.py       what happened, line by line, and its hash

Faults and plans

    swarm.py       one seed, one plan; plan.py: what it decides; stories.py: for one story alone
    faults.py      kinds of faults that any story may meet; situations.py: what a cluster goes through
    links.py       half-open connections and partial partitions; during.py: liveness during a fault
    full_disks.py, descriptors.py     disks without room, processes without descriptors
    rot.py, rot_indexes.py, rot_notes.py   rot in segments, in indexes, and beside the logs
    moves.py, electing.py, who_leads.py, deletions.py, upkeep.py, operators.py   operators at work
    strangers.py, questions.py   clients that ask for what few ask for; knocks.py: at the port of the peers

Stories: clients, and what they were told

    story.py       what stories of a cluster share; workload.py: clients and what must hold
    replicated.py  topics; transactional.py, transactions.py, decisions.py: with transactions
    quorum.py      the metadata
    groups.py, group_lives.py, offset_lives.py       consumer groups
    keyvalue.py, keyvalue_anew.py, keyvalue_copies.py, keyvalue_drawn.py, keyvalue_hearing.py   buckets
    queues.py, queue_operators.py                    queues
    http_story.py, http_clients.py, http_door.py, http_wire.py   the HTTP face, by the project's client
    node_calls.py  what a node's faces offer, asked in its own process
    backups.py     backups and what comes back of them

Judges

    history.py     what clients asked and were told; history_check.py: whether a log could have said so
    registers.py   the same of keys
    replica_watch.py, group_watch.py, keyvalue_watch.py, lease_watch.py, queue_watch.py,
    transaction_watch.py, held_answer_watch.py       look at every step of a run
    replicas_seen.py   what replica_watch.py remembers
    losses.py      what elections by force may lose

Campaigns

    campaign.py    many seeds, in worker processes; shrink.py: the fewest faults that still fail
    met.py, coverage.py   what the seeds have met
"""
