"""What a node does with bytes that no honest client sends."""
