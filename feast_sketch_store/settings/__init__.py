"""One table of options and tags, and the settings of a view that follow from them."""
