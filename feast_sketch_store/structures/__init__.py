"""Structures: how the values of a feature are kept in a sealed layer, how large, and which is chosen."""
