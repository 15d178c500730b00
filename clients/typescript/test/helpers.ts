/** Real servers, and servers that lie. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
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

/** A folder that is removed when the tests of the file are over. */
export function folder(): string {
  const path = mkdtempSync(join(tmpdir(), "leasehold-typescript-"));
  atEnd(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** A real server. */
export interface RealServer {
  readonly url: string;
  readonly child: ChildProcess;
  /** The tokens of a client and of an operator, if the server asks for tokens. */
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
  const child = spawn(PROGRAM, [...args, ...(asksForTokens ? ["--tokens", file] : [])], { stdio: ["ignore", "pipe", "pipe"] });
  atEnd(async () => {
    child.kill("SIGKILL");
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
  return { url, child, tokens };
}

/** A request, as a fake server got it. */
export interface Request {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly headers: http.IncomingHttpHeaders;
  /** A number for each connection. */
  readonly connection: number;
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
        const got = { path: request.url ?? "", body, headers: request.headers, connection: numbers.get(request.socket) ?? 0 };
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

/** Waits until this is true. */
export async function eventually(what: string, isTrue: () => boolean | Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + 20_000;
  while (!(await isTrue())) {
    if (performance.now() > endsAt) throw new Error(`waited 20 s for this: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
