"""Feast's side: answers as protos, and advice at `feast apply`. `online_store` is the door."""
