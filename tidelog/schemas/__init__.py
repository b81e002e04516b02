"""Records whose form a schema registry knows: framing, subjects, the registry's REST API, codecs.

Rule: everything here is pure but for `registry`, which asks over HTTP.
"""
