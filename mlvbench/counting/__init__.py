"""Seconds per phase, from the clock to the snapshot."""
