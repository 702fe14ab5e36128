"""The tests. A package, lest one of the same name that something else installs be taken for it."""
