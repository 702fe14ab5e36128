"""One feature view's life: settings, writes, seals, refreshes, and the state that reads see."""
