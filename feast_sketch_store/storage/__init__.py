"""Storage of files in folders and buckets, and the names of a view's folders and files."""
