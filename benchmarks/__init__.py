"""Programs that measure a node beside what the machine itself can do. See README.md."""
