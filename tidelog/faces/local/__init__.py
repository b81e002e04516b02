"""Several nodes on one machine, as child processes: what `tidelog cluster` runs.

    layout.py       the directory: cluster.json, ports, the quorum; no processes
    secret.py       the file with the secret that the nodes share
    child.py        how a node's process ends with the one that started it
    supervisor.py   the children: started, watched, stopped
    control.py      the socket in the directory, through which the other commands ask

Rule 1: one process, `tidelog cluster up`, owns all nodes of a directory and starts all of them,
        also those that `tidelog cluster start` brings back. So every pid is a child's, which
        cannot be given to a stranger before its end was noticed, and nobody else writes
        cluster.json.
Rule 2: no node outlives it, however it ends; see `child.py`.
Rule 3: it restarts nothing by itself: a node that died is reported, and stays away until asked
        for.
"""
