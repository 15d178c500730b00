/** What the package needs. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { isBuiltin } from "node:module";
import { join } from "node:path";
import { test } from "node:test";

import { PACKAGE } from "./readme.js";

const read = (file: string) => readFileSync(join(PACKAGE, file), "utf8");

test("it has no dependencies", () => {
  const description = JSON.parse(read("package.json"));
  for (const field of ["dependencies", "peerDependencies", "optionalDependencies", "bundleDependencies", "bundledDependencies"]) {
    assert.equal(description[field], undefined, field);
  }
  const files = readdirSync(join(PACKAGE, "dist")).filter((file) => /\.(js|d\.ts)$/.test(file));
  assert.ok(files.includes("index.js") && files.includes("index.d.ts"));
  for (const file of files) {
    // Of the program, not of its comments.
    const text = read(join("dist", file)).replaceAll(/\/\*[^]*?\*\/|^\s*\/\/.*$/gm, "");
    const imported = [...text.matchAll(/\b(?:from|import|require)\s*\(?\s*["']([^"']+)["']/g)].map(([, name]) => name as string);
    for (const name of imported) assert.ok(name.startsWith("./") || (name.startsWith("node:") && isBuiltin(name)), `${file} imports ${name}`);
  }
});

test("it has no script that runs when it is installed", () => {
  const { scripts } = JSON.parse(read("package.json"));
  for (const script of ["preinstall", "install", "postinstall", "prepare"]) assert.equal(scripts[script], undefined, script);
});
