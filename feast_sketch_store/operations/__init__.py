"""Operations on a view: inspect, seal, vacuum, verify, rebuild, delete."""
