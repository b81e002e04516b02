"""Who asks, and what they may do: principals, credentials, permissions. Pure: no socket, no file, no clock.

Every face turns what a client has proved into a `Principal`. Every request is judged for a principal, by the
same rules, whatever face it came through. This room imports only `errors` and `model`.

| module | what it holds |
|---|---|
| `principals.py` | who asks: a kind and a name |
| `permissions.py` | operations, and the resources that they are done to |
"""
