/** The programs of the README, as functions and files that the tests run. */

import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import type { Client, FinishRequest, Lease } from "leasehold";
import type pg from "pg";

/** The folder of the package. */
export const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));

/** What the blocks use and do not declare. */
export interface Given {
  readonly client: Client;
  readonly pool: pg.Pool;
  readonly db: pg.Pool;
  readonly lease: Lease;
  readonly signal: AbortSignal;
  readonly schedule: (signal: AbortSignal) => void;
  readonly finishSoon: (why: string, within: number) => void;
  readonly work: (lease: Lease, signal: AbortSignal) => Promise<void>;
  readonly onFinishRequest?: (request: FinishRequest) => void;
}

/** The blocks of the README in this language. */
export function blocks(language: "js" | "ts" | "sh"): string[] {
  const text = readFileSync(join(PACKAGE, "README.md"), "utf8");
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\n([^]*?)^\`\`\`$`, "gm"))].map(([, code]) => code as string);
}

/** The only block of the README in this language that has these words. */
export function block(language: "js" | "ts" | "sh", words: string): string {
  const found = blocks(language).filter((code) => code.includes(words));
  if (found.length !== 1) throw new Error(`${found.length} blocks of the README, and not one, have ${JSON.stringify(words)}`);
  return found[0] as string;
}

/** Compiles the TypeScript blocks that have these words, with their types, into functions. `name` is a folder of the test file alone. */
export async function compileBlocks(name: string, words: readonly string[]): Promise<((given: Partial<Given>) => Promise<void>)[]> {
  const out = join(PACKAGE, "build/readme", name);
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out, { recursive: true });
  const names = "client, pool, db, lease, signal, schedule, finishSoon, work";
  const functions = words.map((each) => `async ({ ${names} }: Given) => {{\n${block("ts", each)}\n}},`);
  const source = `import type { Given } from "../../../test/readme.js";\nexport const compiled = [\n${functions.join("\n")}\n];\n`;
  writeFileSync(join(out, "blocks.ts"), source);
  const compilerOptions = { ...{ rootDir: "../../..", outDir: "out", declaration: false, declarationMap: false }, ...PROGRAMS };
  writeFileSync(join(out, "tsconfig.json"), JSON.stringify({ extends: "../../../tsconfig.json", compilerOptions, include: ["blocks.ts"] }));
  const compiler = spawnSync(join(PACKAGE, "node_modules/.bin/tsc"), ["-p", out], { encoding: "utf8" });
  if (compiler.status !== 0) throw new Error(`the blocks of the README do not compile: ${compiler.stdout}${compiler.stderr}`);
  const file = new URL(`../readme/${name}/out/build/readme/${name}/blocks.js`, import.meta.url);
  const { compiled } = (await import(file.href)) as { compiled: ((given: Partial<Given>) => Promise<void>)[] };
  return compiled;
}

/** A program need not be as strict as the package. */
const PROGRAMS = { noUnusedLocals: false, noUnusedParameters: false, noUncheckedIndexedAccess: false };
