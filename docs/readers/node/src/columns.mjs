// Columns, and scalars as digits of numbers.

import { Packed, decodeText, fieldOf, integer, vocabulary } from "./codes.mjs";
import { MISSING, NULL, EMPTY, VALUE, list, named } from "./common.mjs";
import { must } from "./container.mjs";

/** Elements of a column: a function from a place to a stored value, and how many there are. */
export function elementsOf(parts, description, field, minWidth) {
  const form = description?.form;
  if (form === "dictionary") {
    const ids = Packed.from(parts, "ids", description.ids, 1);
    const values = vocabulary(parts, "vocabulary", field);
    const at = (i) => {
      const id = ids.number(i);
      must(id >= 0 && id < values.length, "columns", "an id lies outside of its vocabulary");
      return values[id];
    };
    return { at, length: ids.length };
  }
  if (form === "numbers" && !field.storesBytes) {
    const numbers = Packed.from(parts, "numbers", description.numbers, minWidth);
    return { at: (i) => numbers.at(i), length: numbers.length };
  }
  must(form === "bytes" && field.storesBytes, "layer.parts", `elements cannot have the form ${form}`);
  const offsets = Packed.from(parts, "offsets", description.offsets, 1);
  const content = parts.words("content");
  must(offsets.length >= 1, "layer.parts", "bytes have no offsets");
  const at = (i) => {
    const [start, end] = [offsets.at(i), offsets.at(i + 1)];
    must(start >= 0n && start <= end && end <= 8n * BigInt(content.length), "columns", "an element lies outside of its bytes");
    const bytes = content.slice(Number(start), Number(end));
    if (field.kind === "string") decodeText(bytes);
    return bytes;
  };
  return { at, length: offsets.length - 1 };
}

export class Column {
  constructor(parts, description, minWidth = 1) {
    this.field = fieldOf(description?.value_field);
    this.states = Packed.from(parts, "states", description.states);
    this.step = integer(description, "state_step", "layer.parts");
    this.elements = elementsOf(parts.at("elements"), description.elements, this.field, minWidth);
    this.bounds = this.field.isCollection ? Packed.from(parts, "bounds", description.bounds) : null;
    this.numRows = this.bounds ? this.bounds.length - 1 : this.elements.length;
    must(this.states.length === this.numRows, "layer.rows", `the states of ${description.name} are not as many as its rows`);
    must(this.step >= 1 && this.step <= VALUE, "layer.parts", "the states are too far apart");
  }

  read({ row }) {
    const { base } = this.states;
    const state = Number(base + BigInt(this.step) * (this.states.at(row) - base));
    must(state >= MISSING && state <= VALUE, "states", `a state of ${state}`);
    if (!this.bounds) return { state, values: state === VALUE ? [this.elements.at(row)] : [] };
    const [start, end] = [this.bounds.number(row), this.bounds.number(row + 1)];
    must(start >= 0 && start <= end && end <= this.elements.length, "columns", "a row lies outside of its elements");
    return { state, values: Array.from({ length: end - start }, (_, i) => this.elements.at(start + i)) };
  }
}

export class Columns {
  static kind = "columns";
  tellsStates = true;

  constructor(parts, description) {
    this.features = named(list(description, "features"), (entry, number) => new Column(parts.at(`features.${number}`), entry));
    const [first] = this.features.values();
    must(first !== undefined, "layer.parts", "there are no columns");
    this.numRows = first.numRows;
    must([...this.features.values()].every((c) => c.numRows === this.numRows), "layer.rows", "columns have different rows");
  }
}

export class Scalars {
  static kind = "scalars";
  tellsStates = true;

  constructor(parts, description) {
    const entries = list(description, "features");
    const numbers = list(description, "numbers").map((entry, g) => Packed.from(parts.at("numbers"), String(g), entry));
    let [group, product] = [-1, 2n ** 63n];
    const products = [];
    this.features = named(entries, (entry, number) => {
      const field = fieldOf(entry.value_field);
      const values = vocabulary(parts, `features.${number}.vocabulary`, field);
      const others = list(entry, "others");
      const isFine = !field.isCollection && others.every((s) => [MISSING, NULL, EMPTY].includes(s));
      must(isFine && integer(entry, "num_values", "layer.parts") === values.length, "scalars", `${entry.name} is no such scalar`);
      const symbols = BigInt(Math.max(1, values.length + others.length));
      if (product * symbols > 2n ** 63n || group < 0) [group, product] = [group + 1, 1n];
      const [own, divisor] = [numbers[group], product];
      product *= symbols;
      products[group] = product;
      return { field, read: ({ row }) => Scalars.read(own.at(row), divisor, symbols, values, others) };
    });
    must(numbers.length === products.length && numbers.length > 0, "scalars", "the scalars are not those of their numbers");
    numbers.forEach((each, g) => {
      const width = (products[g] - 1n).toString(2).replace(/^0$/, "").length;
      must(each.width === width && each.base === 0n && each.length === numbers[0].length, "scalars", "numbers of another width");
    });
    this.numRows = numbers[0].length;
  }

  static read(number, divisor, symbols, values, others) {
    const symbol = Number((BigInt.asUintN(64, number) / divisor) % symbols);
    if (symbol < values.length) return { state: VALUE, values: [values[symbol]] };
    return { state: others[symbol - values.length] ?? MISSING, values: [] };
  }
}
