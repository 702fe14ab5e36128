"""Rows: keys, codecs and vocabularies; Feast's protos or Arrow become encoded rows, newest first."""
