// The kinds of structures.

import { Columns, Scalars } from "./columns.mjs";
import { Backed, Bloom, Clustered, Static } from "./filters.mjs";
import { Counts, Lists } from "./lists.mjs";
import { Sets } from "./sets.mjs";

const KINDS = [Bloom, Columns, Scalars, Sets, Lists, Counts, Backed, Clustered, Static];

/** By the names that descriptions give them. */
export const STRUCTURES = new Map(KINDS.map((kind) => [kind.kind, kind]));
