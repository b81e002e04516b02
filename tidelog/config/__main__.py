"""`python -m tidelog.config > docs/configuration.md`."""

from tidelog.config.reference import reference

print(reference(), end="")
