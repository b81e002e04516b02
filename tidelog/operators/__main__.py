"""`python -m tidelog.operators > docs/verbs.md`."""

from tidelog.operators.reference import reference

print(reference(), end="")
