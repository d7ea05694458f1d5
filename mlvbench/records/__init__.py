"""Snapshots as records, in files and in the directory of a run."""
