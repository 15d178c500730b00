/** Reads JSON documents with the types that are expected. What is not as expected is a `TypeError`. */

import { Buffer } from "node:buffer";

type Fields = Readonly<Record<string, unknown>>;

const TOKEN = /^[0-9]{1,20}$/;

/** A JSON object. */
export class Doc {
  readonly #fields: Fields;

  constructor(value: unknown) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError("not a JSON object");
    this.#fields = value as Fields;
  }

  /** Reads a body that must be an object. */
  static parse(body: string): Doc {
    return new Doc(JSON.parse(body));
  }

  #get(name: string): unknown {
    return Object.hasOwn(this.#fields, name) ? (this.#fields[name] ?? undefined) : undefined;
  }

  /** A text, if there is one. */
  optText(name: string): string | undefined {
    const value = this.#get(name);
    return typeof value === "string" ? value : undefined;
  }

  /** A text that must be there. */
  text(name: string): string {
    const value = this.#get(name);
    if (typeof value !== "string") throw new TypeError(`"${name}" is not a text`);
    return value;
  }

  /** A number, if there is one. */
  optNumber(name: string): number | undefined {
    return this.#get(name) === undefined ? undefined : this.number(name);
  }

  /** A number that must be there: whole, not negative, and exact. */
  number(name: string): number {
    const value = this.#get(name);
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
      throw new TypeError(`"${name}" is not a whole number from 0`);
    }
    return value;
  }

  /** A token, which is written as text because it may be larger than a number can be. */
  optToken(name: string): bigint | undefined {
    const value = this.optText(name);
    if (value === undefined) return undefined;
    if (!TOKEN.test(value)) throw new TypeError(`"${name}" is not a token`);
    return BigInt(value);
  }

  /** A token that must be there. */
  token(name: string): bigint {
    const value = this.optToken(name);
    if (value === undefined) throw new TypeError(`"${name}" is not a token`);
    return value;
  }

  /** Whether it is there and true. */
  flag(name: string): boolean {
    return this.#get(name) === true;
  }

  /** An object, if there is one. */
  optDoc(name: string): Doc | undefined {
    const value = this.#get(name);
    return value === undefined ? undefined : new Doc(value);
  }

  /** An object that must be there. */
  doc(name: string): Doc {
    return new Doc(this.#get(name));
  }

  /** A list, if there is one. */
  optList(name: string): readonly unknown[] | undefined {
    const value = this.#get(name);
    if (value === undefined) return undefined;
    if (!Array.isArray(value)) throw new TypeError(`"${name}" is not a list`);
    return value;
  }

  /** A list of objects; empty if there is none. */
  docs(name: string): Doc[] {
    return (this.optList(name) ?? []).map((entry) => new Doc(entry));
  }

  /** A list of texts; undefined if there is none. */
  optTexts(name: string): string[] | undefined {
    return this.optList(name)?.map((entry) => {
      if (typeof entry !== "string") throw new TypeError(`"${name}" is not a list of texts`);
      return entry;
    });
  }

  /** A note, which is text or base64. */
  note(): string | Uint8Array | undefined {
    const text = this.optText("note");
    if (text !== undefined) return text;
    const encoded = this.optText("note_base64");
    return encoded === undefined ? undefined : new Uint8Array(Buffer.from(encoded, "base64"));
  }
}

/** The field of a request that has this note. */
export function noteField(note: string | Uint8Array): Record<string, string> {
  return typeof note === "string" ? { note } : { note_base64: Buffer.from(note).toString("base64") };
}
