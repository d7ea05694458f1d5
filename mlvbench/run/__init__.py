"""`mlvbench run`: starts a script with the profiler attached, and is what its processes do beside their work."""
