// The answers of the server, as the page reads them. The source of truth is crates/api.

export type Step = {
  step: string;
  text: string;
  command?: string | null;
  consequence?: string | null;
  token?: string;
  value_hash?: string;
};

export type Holder = { host: string; pid: number; label: string; subject?: string };

export type HeldBy = {
  holder: Holder;
  /** A decimal string: larger than 2^53, so it is never read as a number. */
  token: string;
  weight: number;
  held_for_ms: number;
  remaining_ms: number;
  ttl_ms?: number;
  note?: string;
  note_base64?: string;
  handovers?: number;
  asked?: { within_ms: number; by: string; why: string };
  evicting?: boolean;
  kept?: boolean;
  state?: string | null;
};

export type Foreign = { key: string; form: string; value_hash: string; remaining_ms?: number | null };

export type QueueEntry = {
  holder: Holder;
  weight: number;
  waited_ms: number;
  remaining_ms: number;
  silent?: boolean;
  foreign?: boolean;
};

export type Item = {
  resource: string;
  key: string;
  kind: string;
  capacity: number;
  holders: HeldBy[];
  /** All holders whose process is gone. `holders` has only some. */
  gone?: HeldBy[];
  /** How many more of them there are. */
  gone_more?: number;
  holder_count: number;
  foreign_count: number;
  queue_length: number;
  first_waiter?: Holder | null;
  oldest_wait_ms?: number | null;
  oldest_hold_ms?: number | null;
  stuck: boolean;
  /** Its holder renews and has a note, so waits for it do not count as stuck. */
  led?: boolean;
  paused_for_ms?: number | null;
  unreadable?: string | null;
  unusual_hold?: { usual_ms: number; held_ms: number } | null;
  deadlock?: string[] | null;
  mode?: string;
  next_step?: Step | null;
  steps?: Step[];
};

export type Oldest = { resource: string; key: string; ms: number };
export type Quorum = { nodes: number; up: number; needed: number; margin: number };

export type Overview = {
  sampled_ms_ago: number;
  every_ms: number;
  since: string;
  event_id: string;
  failing?: string | null;
  truncated: boolean;
  held: number;
  waiting: number;
  stuck: number;
  /** Resources that would be stuck, but whose holder renews and has a note. */
  led?: number;
  stuck_after_ms: number;
  paused: number;
  unreadable: number;
  kept?: number;
  unusual?: number;
  gone?: number;
  foreign?: number;
  deadlocks?: number;
  oldest_wait?: Oldest | null;
  oldest_hold?: Oldest | null;
  last_hour?: { [name: string]: number | null };
  kinds?: Kind[];
  rates?: Rates;
  store?: { state: string; sentence: string; quorum?: Quorum | null };
  matched: number;
  items: Item[];
  next?: string | null;
};

export type Kind = { kind: string; resources: number; held: number; waiting: number; stuck: number };
export type Rates = { minute_ms: number; granted: number[]; released: number[]; lost: number[]; ended?: number[]; queued: number[] };

export type Snapshot = {
  resource: string;
  key: string;
  capacity: number;
  holders: HeldBy[];
  holder_count: number;
  foreign?: Foreign[];
  queue: QueueEntry[];
  queue_length: number;
  last_token?: string;
  paused_for_ms?: number | null;
  cursor: string;
  unreadable?: string | null;
};

export type Change = {
  at: string;
  kind: string;
  resource: string;
  key: string;
  token?: string;
  from_token?: string;
  holder?: Holder;
  for_ms?: number;
  waited_ms?: number;
  queue_length: number;
  by?: string;
  why?: string;
};

export type Timed = { at: string; ms: number };
export type Timeline = {
  resource: string;
  key: string;
  since: string;
  complete: boolean;
  entries: Change[];
  waits: Timed[];
  holds: Timed[];
};

export type Node = {
  name: string;
  counts: boolean;
  stands_by?: boolean;
  why?: string | null;
  round_trip_ms?: number | null;
  clock_ahead_ms?: number | null;
};
export type Call = { verb: string; count: number; errors: number; p50_ms?: number | null; p99_ms?: number | null };
export type Finding = { severity: string; title: string; detail: string; fix?: string | null };
export type Store = {
  backend: string;
  level: string;
  because: string;
  state: string;
  sentence: string;
  calls: Call[];
  nodes?: Node[] | null;
  quorum?: Quorum | null;
  findings: Finding[];
};

export type DeadlockWait = {
  process: Holder;
  holds: string;
  token?: string;
  waits_for: string;
  waited_ms: number;
};
export type Deadlock = {
  certainty: string;
  resources: { resource: string; key: string }[];
  waits: DeadlockWait[];
  sentence: string;
};

export type Schedule = {
  name: string;
  schedule: string;
  next_at?: string | null;
  last_tick_at?: string | null;
  last_outcome: string;
  failures?: number;
  missed?: number;
  recorded?: number;
  error?: string;
  holder?: Holder | null;
  resource: string;
  sentence: string;
};
export type Election = {
  resource: string;
  key: string;
  leader: Holder;
  token: string;
  note?: string | null;
  held_for_ms: number;
  remaining_ms: number;
  state?: string | null;
  candidates: number;
};
export type Jobs = { schedules: Schedule[]; elections: Election[] };

export type AuditRecord = {
  at: string;
  at_us: number;
  resource: string;
  key: string;
  token?: string;
  by: string;
  why: string;
  command: string;
  done: boolean;
};
export type AuditPage = { records: AuditRecord[]; next?: string | null };

export type Caller = {
  subject?: string | null;
  roles: string[];
  namespaces?: string[] | null;
  kinds?: string[] | null;
};
export type Info = {
  api: string;
  server: string;
  store: { id: string; backend: string; level: string; because: string; tokens_break_when: string };
  capabilities: { [name: string]: boolean };
  limits: { [name: string]: number };
  caller: Caller;
  survives_server: boolean;
  draining: boolean;
};

export type ProblemBody = {
  title: string;
  status: number;
  detail?: string;
  kind: string;
  effect?: string;
  hint?: string;
  token?: string;
};

/** The description of an element: see dom.js. */
export interface VNode {
  tag: string;
  props: Record<string, any>;
  children: (VNode | string)[];
}
export type Child = string | number | null | undefined | false | VNode | Child[];
