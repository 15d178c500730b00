/** Requests of viewers and operators. */

import { InvalidError } from "./errors.js";
import { parseName, type ResourceName } from "./names.js";

/** What an overview shows. */
export interface OverviewQuery {
  /** A part of the name. */
  readonly q?: string;
  readonly kind?: string;
  readonly sort?: "wait" | "hold" | "name" | "waiters";
  /** `next` of the page before. */
  readonly after?: string;
  readonly limit?: number;
}

/** Which grant an order is for: the grant with this fencing token, or the newest grant. */
export type Target = { readonly token: bigint; readonly any?: never } | { readonly any: true; readonly token?: never };

interface OrderBase {
  readonly resource: ResourceName;
  /** The reason: it is written to the audit trail. */
  readonly why: string;
  /** Who asks. Only used if the server asks for no token. */
  readonly by?: string;
}

/** What an operator can order. */
export type Order = OrderBase &
  (
    | /** Asks the holder to finish. */ ({ readonly action: "ask"; readonly within: number } & Target)
    | /** Ends the lease at its expiry, or at once: then two may run. */ ({ readonly action: "evict" | "evict-now" } & Target)
    | /** Removes the lock of another program. */ { readonly action: "evict-foreign"; readonly valueHash: string }
    | /** Grants nothing for a while. */ { readonly action: "pause"; readonly lasting: number }
    | { readonly action: "resume" }
    | { readonly action: "resize"; readonly capacity: number }
  );

/** The body of an order. */
export function orderBody(order: Order): Record<string, unknown> {
  const { action, why, by } = order;
  if (typeof why !== "string" || why === "") throw new InvalidError("an order needs a reason: why");
  const given = order as Partial<{ token: bigint; any: boolean; within: number; lasting: number; capacity: number; valueHash: string }>;
  const fields = {
    ...parseName(order.resource).field,
    action,
    why,
    by,
    token: given.token?.toString(),
    any: given.any,
    within_ms: given.within,
    lasting_ms: given.lasting,
    capacity: given.capacity,
    value_hash: given.valueHash,
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** A path with its query. Parameters that are undefined are left out. */
export function pathOf(path: string, query: Record<string, string | number | undefined>): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) given.set(name, String(value));
  const text = given.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** The path of one resource. */
export function resourcePath(name: ResourceName, query: Record<string, string | number | undefined> = {}): string {
  const { field } = parseName(name);
  return pathOf("/v1/resource", { ...("resource" in field ? { name: field.resource } : { key: field.key }), ...query });
}
