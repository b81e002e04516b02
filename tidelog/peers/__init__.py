"""How the nodes of a cluster talk to each other: one listener, one link to each peer."""
