// Formulas: how features that nobody writes follow from others of the same row.

import { float, vocabulary } from "./codes.mjs";
import { list, text } from "./common.mjs";
import { must } from "./container.mjs";

const RULE = "formulas";
const KINDS = { cluster: { weights: "U8", field: "int64_val" }, score: { weights: "I32", field: "double_val" } };

const key = (stored) => (typeof stored === "bigint" ? String(stored) : stored.toString("latin1"));

/** To the nearest integer, of two equally near ones the even one. */
function rounded(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

class Formula {
  constructor(parts, entry, features) {
    this.kind = text(entry, "kind");
    const known = Object.hasOwn(KINDS, this.kind) ? KINDS[this.kind] : null;
    must(known !== null && features.get(entry.name)?.field.valueField === known.field, RULE, `there is no formula ${this.kind} of ${entry.name}`);
    this.offsets = [...parts.array("offsets", "I64").values];
    [this.unit, this.step] = [float(entry, "unit", "layer.parts"), float(entry, "step", "layer.parts")];
    const isFine = this.offsets.length >= 1 && (this.kind === "cluster" || this.offsets.length === 1);
    must(isFine && [this.unit, this.step].every((n) => n > 0 && n < Infinity), RULE, `the sums of ${entry.name} cannot be so`);
    const names = list(entry, "sources");
    must(names.length >= 1 && new Set(names).size === names.length, RULE, `${entry.name} has the same source twice, or none`);
    this.sources = names.map((name, j) => {
      const feature = features.get(name);
      must(feature !== undefined && feature.field.isCollection, RULE, `source ${name} of ${entry.name} is no set of the layer`);
      const values = vocabulary(parts, `${j}.vocabulary`, feature.field);
      const weights = parts.array(`${j}.weights`, known.weights, 2);
      must(weights.shape[0] === values.length && weights.shape[1] === this.offsets.length, RULE, `weights of ${entry.name} do not fit its values`);
      return { name, ids: new Map(values.map((value, id) => [key(value), id])), weights: weights.values };
    });
  }

  /** The value of a row, of which `storedOf(name)` gives the stored values of a source. */
  of(storedOf) {
    const sums = [...this.offsets];
    for (const { name, ids, weights } of this.sources) {
      for (const stored of storedOf(name)) {
        const id = ids.get(key(stored));
        if (id !== undefined) sums.forEach((sum, c) => (sums[c] = sum + BigInt(weights[id * sums.length + c])));
      }
    }
    if (this.kind === "score") return (rounded((Number(sums[0]) * this.unit) / this.step) + 0) * this.step;
    return BigInt(sums.reduce((best, sum, c) => (sum > sums[best] ? c : best), 0));
  }
}

/** The formulas of a layer by the names of the features that they give. */
export function formulasOf(parts, description, features) {
  if (description.formulas === undefined) return new Map();
  const entries = list(description, "formulas");
  const found = new Map(entries.map((entry, i) => [text(entry, "name"), new Formula(parts.at(String(i)), entry, features)]));
  must(found.size === entries.length, RULE, "two formulas give one feature");
  return found;
}
