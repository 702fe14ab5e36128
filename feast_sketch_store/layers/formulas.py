"""Formulas in a snapshot. Reads use them to compute features of rows that are not sealed yet."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.formulas import Formula, Source
from feast_sketch_store.structures.parts import Described, Parts, checked, prefixed, report_of


def describe_formula(name: str, formula: Formula) -> Described:
    """A formula as a JSON-serializable description and named arrays."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for number, source in enumerate(formula.sources):
        arrays |= prefixed(f"{number}.vocabulary", source.vocabulary.to_packed())
        arrays[f"{number}.weights"] = source.weights
    entry = {"name": name, "unit": formula.unit, "step": formula.step}
    sources = [source.feature for source in formula.sources]
    return {**entry, "sources": sources, "report": {"version": formula.version}}, arrays


def formulas_from(
    entries: Sequence[Mapping[str, Any]], codecs: Mapping[str, FeatureCodec], parts: Parts
) -> dict[str, Formula]:
    """The formulas that `describe_formula` described, in the same order.

    Parameters
    ----------
    entries : the descriptions.
    codecs : of the layer's features, by name.
    parts : the arrays of each formula, under its number.

    Raises
    ------
    ValueError, KeyError, TypeError : the parts do not fit each other or the features.
    """
    formulas = {}
    for number, entry in enumerate(entries):
        name, own = checked(entry["name"], str), parts.at(str(number))
        sources = [checked(source, str) for source in checked(entry["sources"], list)]
        if name in formulas or not {name, *sources} <= codecs.keys():
            raise ValueError(f"there are two formulas of {name!r}, or the layer lacks one of its features")
        if not all(codecs[source].is_collection and not codecs[source].may_repeat for source in sources):
            raise ValueError(f"the formula of {name!r} has a source that is not a set")
        formulas[name] = Formula(
            codecs[name],
            tuple(
                Source(
                    source,
                    own.vocabulary(f"{place}.vocabulary", codecs[source]),
                    own.array(f"{place}.weights", np.int32),
                )
                for place, source in enumerate(sources)
            ),
            checked(entry["unit"], float),
            checked(entry["step"], float),
            checked(report_of(entry)["version"], int),
        )
    return formulas
