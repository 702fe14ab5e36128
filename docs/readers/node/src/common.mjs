// What the structures share: states, checked parts of descriptions, features by their names.

import { must } from "./container.mjs";

export const [MISSING, NULL, EMPTY, VALUE] = [0, 1, 2, 3];
export const MAX_CODE_WIDTH = 30;

export function list(description, key, rule = "layer.parts") {
  must(Array.isArray(description?.[key]), rule, `${key} is no list`);
  return description[key];
}

export function object(description, key) {
  const value = description?.[key];
  must(value !== null && typeof value === "object" && !Array.isArray(value), "layer.parts", `${key} is not described`);
  return value;
}

export function text(description, key) {
  must(typeof description?.[key] === "string", "layer.parts", `${key} is no string`);
  return description[key];
}

export function salt(description) {
  const halves = list(description, "salt");
  const isFine = halves.length === 2 && halves.every((half) => /^[0-9a-f]{16}$/.test(half));
  must(isFine, "layer.parts", "the salt is not two numbers of 64 bits");
  return halves.map((half) => BigInt(`0x${half}`));
}

export const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);

export function named(entries, make) {
  const features = new Map();
  for (const [number, entry] of entries.entries()) {
    const feature = make(entry, number);
    must(!features.has(entry.name), "layer.parts", `feature ${entry.name} is there twice`);
    features.set(text(entry, "name"), feature);
  }
  return features;
}

/** Which values of the vocabulary that it shares a feature has. */
export function knownFrom(parts, size, count, rule) {
  if (count === size) return () => true;
  const bytes = parts.array("known", "U8").values;
  const isKnown = (id) => ((bytes[id >> 3] >> (id & 7)) & 1) === 1;
  const ones = sum(Array.from({ length: 8 * bytes.length }, (_, id) => Number(isKnown(id))));
  const inside = sum(Array.from({ length: size }, (_, id) => Number(isKnown(id))));
  must(bytes.length === Math.ceil(size / 8) && ones === count && inside === count, rule, "the known values are not as many as is told");
  return isKnown;
}
