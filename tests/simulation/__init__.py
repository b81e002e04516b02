"""Whole nodes on simulated hosts: thousands of seeds, the same seed always the same history."""
