"""Who asks, and what they may do: principals, credentials, permissions. Pure: no socket, no file, no clock.

Every face turns what a client has proved into a `Principal`. Every request is judged for a principal, by the
same rules, whatever face it came through. This room imports only `errors` and `model`.

| module | what it holds |
|---|---|
| `principals.py` | who asks: a kind and a name |
| `scram.py` | SCRAM, and what is stored of a password |
| `sasl.py` | one exchange of messages that proves something, of each mechanism |
| `refusals.py` | what a client is told that may not do what it asks for |
| `tokens.py` | what programs show instead of a password, and what is stored of it |
| `certificates.py` | whose certificate it is |
| `failures.py` | what goes wrong where somebody proves who they are |
| `secrets.py` | the secret that the nodes of a cluster share |
| `permissions.py` | operations, and the resources that they are done to |
| `acls.py` | access control lists: bindings, and what they say of a question |
| `authorizer.py` | the one place that every face asks, and what it keeps for a client |
"""
