"""What operators do with a view: inspect, seal, vacuum, verify, rebuild, delete."""
