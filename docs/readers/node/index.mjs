// Reads feature views of a feast_sketch_store: see README.md.

export { RefusedError } from "./src/container.mjs";
export { View, openView } from "./src/view.mjs";
