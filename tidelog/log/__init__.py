"""One partition's bytes on one disk: segments, indexes, epochs, producers, recovery, retention."""
