"""A feature repository in a folder, which a process of its own applies, materializes and seals."""

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from measure import begin_peak, memory
from numpy.typing import NDArray
from scipy import sparse
from tasks import Task

from feast_sketch_store import SketchReader

PROJECT, VIEW = "click_prediction", "history"
ROWS = "rows.parquet"
SCORE = "score"  # a feature that a setting may add


@dataclass(frozen=True)
class Tags:
    """What a setting writes on the view and on its features, and the vocabulary files it names."""

    of_view: Mapping[str, str] = field(default_factory=dict)
    of_features: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)


class Repository:
    """A repository with a task's view. What is written is written by another process than reads it.

    Parameters
    ----------
    online_store : as it stands in ``feature_store.yaml``.
    """

    def __init__(self, folder: Path, task: Task, online_store: Mapping[str, Any]):
        self.folder = folder
        self._task = task
        self._writer = ProcessPoolExecutor(1, get_context("spawn"))
        folder.mkdir()
        configuration = {
            "project": PROJECT,
            "provider": "local",
            "registry": "registry.db",
            "offline_store": {"type": "file"},
            "online_store": dict(online_store),
            "entity_key_serialization_version": 3,
        }
        (folder / "feature_store.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))
        pq.write_table(_rows(task), folder / ROWS)

    def __enter__(self) -> "Repository":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()

    def apply(self) -> None:
        """``feast apply``, which is part of the others."""
        self._run(Tags(), "apply")

    def materialize(self) -> None:
        """``feast materialize``."""
        self._run(Tags(), "materialize")

    def seal(self, tags: Tags) -> dict[str, Any]:
        """``feast apply`` of other tags and ``feast-sketch seal``.

        Returns
        -------
        ``bytes`` of the snapshot that readers map, ``seconds`` of the seal, and the ``peak`` of the
        writer's resident memory in both, less what it had before.
        """
        for name, values in tags.files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(json.dumps(values))
        return self._run(tags, "seal")

    def read(self) -> dict[str, sparse.csr_matrix]:
        """The history of all people as the store has it, by a reader that was not there before."""
        task = self._task
        reader = SketchReader(self.folder, VIEW, vocabularies=task.vocabularies)
        history = {}
        for name, vocabulary in task.vocabularies.items():
            answer = reader.csr(name, task.people)
            ones = np.ones(len(answer.ids), np.float32)
            shape = (len(task.people), len(vocabulary))
            history[name] = sparse.csr_matrix((ones, answer.ids, answer.indptr), shape)
        return history

    def score(self) -> NDArray[np.float64]:
        """The score of all people as the store has it; NaN of those without a row."""
        values = SketchReader(self.folder, VIEW).arrow(SCORE, self._task.people)
        return np.array(values.to_numpy(zero_copy_only=False), np.float64)

    def check(self, history: Mapping[str, sparse.csr_matrix], places: NDArray[np.int64]) -> None:
        """Check that ``get_online_features`` gives some people the same history.

        Raises
        ------
        AssertionError : it does not.
        """
        from feast import FeatureStore

        task = self._task
        answer = FeatureStore(repo_path=str(self.folder)).get_online_features(
            features=[f"{VIEW}:{name}" for name in history],
            entity_rows=[{task.join_key: person} for person in task.people[places].tolist()],
        )
        by_feature = answer.to_dict()
        for name, matrix in history.items():
            for place, values in zip(places, by_feature[name], strict=True):
                expected = task.vocabularies[name][matrix[place].indices]
                if set(values or ()) != set(expected):
                    raise AssertionError(
                        f"{name} of {task.people[place]}: {values}, but the reader {expected}"
                    )

    def _run(self, tags: Tags, step: str) -> dict[str, Any]:
        task = self._task
        schema = dict.fromkeys(task.vocabularies, task.element)
        return self._writer.submit(
            _in_writer, str(self.folder), task.join_key, schema, task.moment, tags, step
        ).result()


def _rows(task: Task) -> pa.Table:
    """A row for each person with a history, as a Parquet source has them."""
    written = task.written
    columns = {task.join_key: pa.array(task.people[written])}
    for name, matrix in task.history.items():
        offsets = pa.array(np.append(matrix.indptr[written], matrix.nnz), pa.int32())
        values = pa.array(task.vocabularies[name]).take(pa.array(matrix.indices))
        columns[name] = pa.ListArray.from_arrays(offsets, values)
    moments = np.full(len(written), int(task.moment.timestamp()) * 1_000_000)
    columns[SCORE] = pa.nulls(len(written), pa.float64())
    columns["event_timestamp"] = pa.array(moments, pa.timestamp("us", tz="UTC"))
    return pa.table(columns)


def _in_writer(
    folder: str, join_key: str, schema: Mapping[str, str], moment: datetime, tags: Tags, step: str
) -> dict[str, Any]:
    import feast.types
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType

    from feast_sketch_store import open_view
    from feast_sketch_store.operations import maintenance

    person = Entity(name="person", join_keys=[join_key], value_type=ValueType.INT64)
    fields = [
        Field(
            name=name,
            dtype=feast.types.Set(getattr(feast.types, element)),
            tags=dict(tags.of_features.get(name, {})),
        )
        for name, element in schema.items()
    ]
    if SCORE in tags.of_features:
        fields.append(Field(name=SCORE, dtype=feast.types.Float64, tags=dict(tags.of_features[SCORE])))
    view = FeatureView(
        name=VIEW,
        entities=[person],
        schema=[Field(name=join_key, dtype=feast.types.Int64), *fields],
        source=FileSource(name="rows", path=ROWS, timestamp_field="event_timestamp"),
        ttl=timedelta(0),
        tags=dict(tags.of_view),
    )
    # Memory is counted from here: `apply` opens the view, and with it rows that are not sealed yet.
    before = begin_peak()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # Feast tells its progress
        store = FeatureStore(repo_path=folder)
        store.apply([person, view])
        if step == "materialize":
            store.materialize(moment - timedelta(days=1), moment + timedelta(days=1))
        if step != "seal":
            return {}
        started = time.perf_counter()
        maintenance.seal(store, VIEW)
        seconds = time.perf_counter() - started
        peak = memory("VmHWM") - before
        size = open_view(store, VIEW).stats().snapshot_bytes
        return {"bytes": size, "seconds": seconds, "peak": peak}
