"""Functions, iterables and attributes as phases."""
