"""Consumer groups: the machine of one group, and all groups of one offsets partition."""
