// Formulas: how features that nobody writes follow from others of the same row.

import { float, vocabulary } from "./codes.mjs";
import { list, text } from "./common.mjs";
import { must } from "./container.mjs";

const RULE = "formulas";

const key = (stored) => (typeof stored === "bigint" ? String(stored) : stored.toString("latin1"));

/** To the nearest integer, of two equally near ones the even one. */
function rounded(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 === 0 ? below : below + 1;
}

class Formula {
  constructor(parts, entry, features) {
    must(features.get(entry.name)?.field.valueField === "double_val", RULE, `${entry.name} is no double of the layer`);
    [this.unit, this.step] = [float(entry, "unit", "layer.parts"), float(entry, "step", "layer.parts")];
    must([this.unit, this.step].every((n) => n > 0 && n < Infinity), RULE, `the unit or step of ${entry.name} is not above 0`);
    const names = list(entry, "sources").map((source) => text(source, "name"));
    must(names.length >= 1 && new Set(names).size === names.length, RULE, `${entry.name} has the same source twice, or none`);
    this.sources = names.map((name, j) => {
      const feature = features.get(name);
      must(feature !== undefined && feature.field.isCollection, RULE, `source ${name} of ${entry.name} is no set of the layer`);
      const values = vocabulary(parts, `sources.${j}.vocabulary`, feature.field);
      const weights = parts.array(`sources.${j}.weights`, "I32");
      must(weights.shape[0] === values.length, RULE, `weights of ${entry.name} do not fit its values`);
      return { name, weightOf: new Map(values.map((value, id) => [key(value), BigInt(weights.values[id])])) };
    });
  }

  /** The value of a row, of which `storedOf(name)` gives the stored values of a source. */
  of(storedOf) {
    let sum = 0n;
    for (const { name, weightOf } of this.sources) for (const stored of storedOf(name)) sum += weightOf.get(key(stored)) ?? 0n;
    return (rounded((Number(sum) * this.unit) / this.step) + 0) * this.step;
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
