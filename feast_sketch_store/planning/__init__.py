"""What a size costs in accuracy: plans for the views of a feature repository."""
