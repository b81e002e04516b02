"""Bytes to requests and responses to bytes: frames, versions, and the two hot codecs."""
