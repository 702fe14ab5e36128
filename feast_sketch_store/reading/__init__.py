"""Read a view as arrays, and send training rows through the sketch. Needs no Feast."""
