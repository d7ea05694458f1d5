"""What the benchmarks read from their command lines."""

import argparse


def positive(text: str) -> int:
    """Reads a positive integer of the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text}")
    return value
