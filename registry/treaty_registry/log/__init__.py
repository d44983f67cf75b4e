"""Write and read the log: sequencing, leadership, the fence, checkpoints, and the log's tables."""
