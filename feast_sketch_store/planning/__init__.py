"""Plans for the views of a feature repository: what a size costs in accuracy.

sample.py    sampled entities, and estimates of the whole view from them
source.py    where they come from: the row log, or the offline source
curves.py    bytes and false values of each structure, by theory
other_stores.py  the bytes of sampled rows in Redis and SQLite
timed.py     points of lists, by tick and limit
labels.py    labelled rows
models.py    the accuracy of a model of them through each structure, measured
logistic.py  the fit of such a model
scores.py    points of scores with the model's own weights
plan.py      a plan: its points, and the one to take
report.py    the page that shows them
choice.py    the point that meets a target, and the knee
planner.py   all of it for a view of a Feast repository, beside its current settings
"""
