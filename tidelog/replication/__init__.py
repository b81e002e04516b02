"""How replicas of a partition on different nodes come to hold the same, and stay so.

    replicas.py           the partitions on this node: opened, led, closed, looked up
    metadata_changes.py   acts on what the metadata says
    follower_sessions.py  leaders feed their followers
    leader_fetchers.py    followers fetch from their leaders
    lagging_followers.py  followers that are behind: noticed, paced, told of
    in_sync.py            what leaders ask of the controller: other in-sync sets, or another epoch
    replica_reports.py    how far each replica goes, told to the voters
    log_starts.py         starts of logs move, and followers hear of it
    log_changes.py        a follower's log is cut or begun anew, as its leader's history asks
    removal.py            files of deleted records and partitions are removed
    leftovers.py          what is left of replicas that were moved away while the node was down
    scrubbing.py          sealed bytes are read again and again; scrub_visits.py is one segment of it
    rot_healing.py        rot is mended, with what rot_helpers.py gets from other replicas
    damage.py             a log that is suspected is looked at; one that is damaged is told of
    replication.py        one of each

Rule: it knows nothing of clients. It may touch partitions, logs, peers and the metadata (`cluster/`,
`controller/`), never the broker above it.
"""
