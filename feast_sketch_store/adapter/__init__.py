"""Feast's side of the store: answers as protos, options, and advice at `feast apply`."""
