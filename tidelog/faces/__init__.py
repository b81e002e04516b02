"""How people and programs reach a node. A face translates; it owns no state."""
