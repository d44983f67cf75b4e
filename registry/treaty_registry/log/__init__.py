"""The log itself: sequencing, leadership, the fence, checkpoints, its tables; and reading it back."""
