/** Names of resources, and owner tokens. */

import { Buffer } from "node:buffer";
import { createHash, webcrypto } from "node:crypto";

import { InvalidError } from "./errors.js";

/** A resource: `[namespace:]kind/id`, such as `report/42`; or its key, which is how a resource with a hashed id is named. */
export type ResourceName = string | { readonly key: string };

const NAMES = /^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}$/;
const KEY = /^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}\/(~[0-9a-f]{32}|([A-Za-z0-9._:@+=,-]|%[0-9A-F]{2}){1,768})$/;
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;
/** Half of a character. */
const SURROGATE = /\p{Surrogate}/u;
const PLAIN = /[A-Za-z0-9._:@+=,-]/;
const ID_MAX = 256;

/** A name that was checked. */
export interface Named {
  /** As people write it. */
  readonly text: string;
  /** As stores write it: the id is percent-encoded. Several leases are acquired in the order of their keys. */
  readonly key: string;
  /** The field of a request that names it. */
  readonly field: { readonly resource: string } | { readonly key: string };
}

/** Checks a name, without asking the server. */
export function parseName(name: ResourceName): Named {
  if (typeof name === "object" && name !== null) {
    const { key } = name;
    if (typeof key !== "string" || !KEY.test(key)) throw new InvalidError(`${quote(key)} is not the key of a resource`);
    return { text: key, key, field: { key } };
  }
  return { text: name, key: keyOf(name), field: { resource: name } };
}

/** The key of `[namespace:]kind/id`, as the server writes it. */
export function keyOf(resource: string): string {
  const slash = typeof resource === "string" ? resource.indexOf("/") : -1;
  if (slash < 0) throw new InvalidError(`${quote(resource)} is not a resource: write kind/id, as in report/42`);
  const [names, id] = [resource.slice(0, slash), resource.slice(slash + 1)];
  const refuse = (why: string) => new InvalidError(`${quote(resource)} is not a resource: ${why}`);
  if (!NAMES.test(names)) {
    throw refuse("before the slash, 1 to 64 of a-z, 0-9, '.', '_' and '-' are allowed, and a namespace with ':' before them");
  }
  if (SURROGATE.test(id)) throw refuse("its id has half of a surrogate pair, so it is not Unicode");
  if (CONTROL.test(id)) throw refuse("its id has a control character");
  const bytes = new TextEncoder().encode(id);
  if (bytes.length < 1 || bytes.length > ID_MAX) throw refuse(`an id has 1 to ${ID_MAX} bytes, this one has ${bytes.length}`);
  return `${names}/${Array.from(bytes, encodeByte).join("")}`;
}

function encodeByte(byte: number): string {
  const char = String.fromCharCode(byte);
  return PLAIN.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}

/** For messages: escaped, and short. */
function quote(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

/** Random hex digits: two for each byte. */
export function randomHex(bytes: number): string {
  return Buffer.from(webcrypto.getRandomValues(new Uint8Array(bytes))).toString("hex");
}

/** What stands for an owner token in answers. */
export function ownerHash(owner: string): string {
  return createHash("sha256").update(owner).digest("hex").slice(0, 32);
}
