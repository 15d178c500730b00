/** TLS: a certificate is checked, and an authority can be named. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import * as https from "node:https";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";

import { Client, DeniedError } from "leasehold";

import { atEnd, folder } from "./helpers.js";

test("a server is trusted only by its certificate", async () => {
  const path = folder();
  const [keyFile, certFile] = [join(path, "key.pem"), join(path, "cert.pem")];
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
  const made = spawnSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", keyFile, "-out", certFile, "-days", "2", ...subject]);
  assert.equal(made.status, 0, String(made.stderr));
  const [key, cert] = [readFileSync(keyFile, "utf8"), readFileSync(certFile, "utf8")];
  let tokens = 0;
  const server = https.createServer({ key, cert }, (request, response) => {
    if (request.headers.authorization === "Bearer lh_1_2") tokens += 1;
    const id = String(request.headers["leasehold-request"]);
    response.writeHead(403, { "leasehold-api": "1.0", "leasehold-store": "s", "leasehold-request": id });
    response.end(JSON.stringify({ kind: "denied", effect: "none", detail: "but trusted" }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  atEnd(() => {
    server.close();
    server.closeAllConnections();
  });
  const { port } = server.address() as AddressInfo;
  const options = { token: "lh_1_2" };

  const refused = (error: unknown) => error instanceof DeniedError && error.message.includes("cannot be trusted") && error.effect === "none";
  await using stranger = new Client(`https://localhost:${port}`, options);
  await assert.rejects(stranger.tryAcquire("a/1"), refused);
  await using elsewhere = new Client(`https://127.0.0.1:${port}`, { ...options, tls: { ca: cert } });
  await assert.rejects(elsewhere.tryAcquire("a/1"), refused);
  assert.equal(tokens, 0, "the token is sent to no stranger");
  await using client = new Client(`https://localhost:${port}`, { ...options, tls: { ca: cert } });
  await assert.rejects(client.tryAcquire("a/1"), { message: "but trusted" });
  assert.equal(tokens, 1);
});
