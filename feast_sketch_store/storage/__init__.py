"""Where bytes lie: the names of a view's folders and files."""
