/** Real servers, and servers that lie. */

import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { accessSync, constants, existsSync, mkdtempSync, rmSync } from "node:fs";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { fileURLToPath } from "node:url";

/** The program whose `serve` is used: a test without it fails. */
export const PROGRAM = process.env["LEASEHOLD_PROGRAM"] ?? fileURLToPath(new URL("../../../../target/debug/leasehold", import.meta.url));

const cleanups: (() => unknown)[] = [];

// One hook of the file: those that are registered within a test or another hook run at other times, or not at all.
after(async () => {
  for (const cleanup of cleanups.reverse()) await cleanup();
});

/** Does this when the tests of the file are over; what was begun last is ended first. */
export function atEnd(cleanup: () => unknown): void {
  cleanups.push(cleanup);
}

/** A folder that is removed when the tests of the file are over. In memory where there is such a place: a busy disk delays commits by seconds. */
export function folder(): string {
  const path = mkdtempSync(join(memory() ?? tmpdir(), "leasehold-typescript-"));
  atEnd(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

function memory(): string | undefined {
  const path = "/dev/shm";
  try {
    accessSync(path, constants.W_OK);
    return path;
  } catch {
    return undefined;
  }
}

/**
 * Starts `$@`, kills it when our standard input ends, and removes its folder. The input is a pipe of the test process, so it ends when that
 * process dies, however it dies.
 */
const UNTIL_INPUT_ENDS = `
  trap '' HUP INT TERM
  exec 3<&0
  "$@" </dev/null 3<&- &
  server=$!
  exec >/dev/null 2>&1
  (read -r _ <&3; kill -9 $server) &
  watcher=$!
  wait $server
  kill -9 $watcher
  rm -rf "$FOLDER"
`;

/** A real server. */
export interface RealServer {
  readonly url: string;
  /** Where it keeps everything. */
  readonly folder: string;
  /** The API tokens of a client and of an operator, if the server needs one. */
  readonly tokens: { readonly client: string; readonly operator: string };
}

/** Starts a server on any free port, over a store of its own, for the tests of this file. */
export async function startServer(asksForTokens = false): Promise<RealServer> {
  if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} does not exist: build it with cargo build -p leasehold-cli, or set LEASEHOLD_PROGRAM`);
  const path = folder();
  const file = join(path, "tokens.toml");
  const newToken = (role: string) => {
    const printed = spawnSync(PROGRAM, ["token", "--tokens", file, "new", `the-${role}`, "--role", role], { encoding: "utf8" });
    const [token] = /lh_\w+/.exec(printed.stdout) ?? [];
    if (token === undefined) throw new Error(`no token was made: ${printed.stderr}`);
    return token;
  };
  const tokens = asksForTokens ? { client: newToken("client"), operator: newToken("operator") } : { client: "", operator: "" };
  const args = ["--store", `sqlite:${join(path, "leases.db")}`, "serve", "--listen", "127.0.0.1:0"];
  const command = [PROGRAM, ...args, ...(asksForTokens ? ["--tokens", file] : [])];
  const env = { ...process.env, FOLDER: path };
  const child = spawn("sh", ["-c", UNTIL_INPUT_ENDS, "sh", ...command], { stdio: ["pipe", "pipe", "pipe"], env });
  atEnd(async () => {
    child.stdin.end();
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  });
  const said: string[] = [];
  const url = await new Promise<string>((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        said.push(line);
        const [address] = /http:\/\/127\.0\.0\.1:\d+/.exec(line) ?? [];
        if (address !== undefined) resolve(address);
      });
    }
    child.once("exit", () => reject(new Error(`the server ended: ${said.join("\n")}`)));
  });
  return { url, tokens, folder: path };
}

/** A request, as a fake server got it. */
export interface Request {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly headers: http.IncomingHttpHeaders;
  /** A number for each connection. */
  readonly connection: number;
  /** When it was read, in milliseconds. */
  readonly at: number;
}

/** What a fake server answers. A header that is undefined is left out. */
export interface Reply {
  readonly status?: number;
  readonly headers?: Record<string, string | undefined>;
  /** The body: JSON of an object, or this text. */
  readonly body?: object | string;
  /** Cuts the connection instead. */
  readonly cut?: "before" | "within";
  /** Does not answer at all. */
  readonly silent?: boolean;
}

/** A server that answers as it is told. */
export class FakeServer {
  readonly requests: Request[] = [];
  readonly #server: http.Server;
  #connections = 0;

  private constructor(server: http.Server) {
    this.#server = server;
  }

  static async start(answer: (request: Request, server: FakeServer) => Reply): Promise<FakeServer> {
    const server = http.createServer();
    const fake = new FakeServer(server);
    const numbers = new WeakMap<object, number>();
    server.on("connection", (socket) => numbers.set(socket, (fake.#connections += 1)));
    server.on("request", (request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        const text = Buffer.concat(chunks).toString();
        const body = (text === "" ? {} : JSON.parse(text)) as Record<string, unknown>;
        const connection = numbers.get(request.socket) ?? 0;
        const got = { path: request.url ?? "", body, headers: request.headers, connection, at: performance.now() };
        fake.requests.push(got);
        send(response, request, answer(got, fake));
      });
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    atEnd(() => {
      server.close();
      server.closeAllConnections();
    });
    return fake;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The requests on this path. */
  on(path: string): Request[] {
    return this.requests.filter((request) => request.path === path);
  }

  /** Waits until this path was requested so often. */
  received(path: string, count: number): Promise<void> {
    return eventually(`${count} requests of ${path}`, () => this.on(path).length >= count);
  }
}

function send(response: http.ServerResponse, request: http.IncomingMessage, reply: Reply): void {
  if (reply.silent) return;
  if (reply.cut === "before") return void request.socket.destroy();
  const id = request.headers["leasehold-request"];
  const headers = {
    "content-type": "application/json",
    "leasehold-api": "1.0",
    "leasehold-store": "1111222233334444",
    "leasehold-request": typeof id === "string" ? id : undefined,
    ...reply.headers,
  };
  for (const [name, value] of Object.entries(headers)) if (value !== undefined) response.setHeader(name, value);
  const body = typeof reply.body === "string" ? reply.body : JSON.stringify(reply.body ?? {});
  response.statusCode = reply.status ?? 200;
  response.setHeader("content-length", Buffer.byteLength(body));
  if (reply.cut === "within") {
    response.write(body.slice(0, body.length / 2), () => request.socket.destroy());
    return;
  }
  response.end(body);
}

/** The fencing token of an honest answer. */
export const TOKEN = "1795004954701560";

export const hashOf = (claim: Record<string, unknown>) => createHash("sha256").update(String(claim["owner"])).digest("hex").slice(0, 32);

export function names(claim: Record<string, unknown>): { resource: string; key: string; owner_hash: string } {
  const resource = String(claim["resource"]);
  return { resource, key: resource, owner_hash: hashOf(claim) };
}

export function grant(claim: Record<string, unknown>): Record<string, unknown> {
  const ttl = claim["ttl_ms"];
  const pass = `${TOKEN} ${hashOf(claim)} ${String(claim["resource"])}`;
  return { verdict: "granted", ...names(claim), token: TOKEN, pass, ttl_ms: ttl, remaining_ms: ttl, waited_ms: 0 };
}

export function kept(claim: Record<string, unknown>): Record<string, unknown> {
  const ttl = claim["ttl_ms"];
  return { status: 200, verdict: "kept", ...names(claim), grant: TOKEN, ttl_ms: ttl, remaining_ms: ttl, asked: null, evicting: false };
}

/** An honest answer. */
export function honest({ path, body }: Request): Reply {
  if (path === "/v1/acquire") return { body: grant(body) };
  if (path === "/v1/release") return { body: { verdict: "released", ...names(body) } };
  return { body: { leases: (body["leases"] as Record<string, unknown>[]).map(kept) } };
}

/** Waits until this is true. */
export async function eventually(what: string, isTrue: () => boolean | Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + 30_000;
  while (!(await isTrue())) {
    if (performance.now() > endsAt) throw new Error(`waited 30 s for this: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
