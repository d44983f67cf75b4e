// Load the scripts of the pages as a browser does: in order, into one global scope.
import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

export function load(...names) {
  for (const name of names) {
    const file = new URL(`../../registry/treaty_registry/pages/static/${name}`, import.meta.url);
    runInThisContext(readFileSync(file, "utf8"), { filename: file.pathname });
  }
}

export const known = (name) => runInThisContext(name);

// The cases that the Python side wrote.
export const cases = () => JSON.parse(readFileSync(process.env.CASES, "utf8"));
