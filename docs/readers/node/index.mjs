// Reads feature views of a feast_sketch_store: see README.md.

export { RefusedError } from "./src/container.mjs";
export { openView } from "./src/shards.mjs";
export { View } from "./src/view.mjs";
