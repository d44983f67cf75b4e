"""What is proved before anything is kept or run: the ten steps, over bytes."""
