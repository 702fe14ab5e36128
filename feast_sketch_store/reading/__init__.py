"""The reader's side: a view as arrays, and training rows through the sketch. No Feast."""
