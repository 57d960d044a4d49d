export interface ConnectOptions {
  /** A token of `millrace tokens create`. */
  token?: string;
}

export interface QueryOptions {
  /** The values of $1, $2 and so on. */
  params?: (string | number | boolean | null)[];
  /** The least number of seconds between two states; changes between them are combined. */
  minInterval?: number;
  /** The version after which the query ends. */
  upTo?: number;
}

/** Whole numbers beyond 2^53 - 1, decimals, times and bytes are strings. */
export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
export type Row = { [column: string]: Value };

export interface Change {
  rows: Row[];
  /** The ids of rows that came in, changed and left. */
  added: string[];
  changed: string[];
  removed: string[];
  /** Whether the result was read anew. */
  snapshot: boolean;
  version: number;
}

export interface LiveQuery {
  readonly rows: Row[];
  readonly ids: string[];
  readonly version: number | null;
  readonly watermark: string | null;
  readonly state: "connecting" | "live" | "reconnecting" | "closed";
  onChange(work: (change: Change) => void): this;
  onError(work: (error: Error & { kind?: string }) => void): this;
  close(): void;
}

export interface Connection {
  query(sql: string, options?: QueryOptions): LiveQuery;
  close(): void;
}

export function connect(url: string, options?: ConnectOptions): Connection;
