"""Rows: keys, codecs and vocabularies; from Feast's protos or Arrow to encoded rows, newest first."""
