/** The live queries of this page, over the client that any application uses, and SQL for them. */

import { connect } from "/millrace.js";
import { token } from "./api.js";

let connection = null;

/** The one connection of this page. */
export function live() {
  connection ??= connect(location.origin, { token: token() ?? undefined });
  return connection;
}

/** A name as SQL. */
export const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

/** A text as SQL. */
export const text = (value) => `'${value.replaceAll("'", "''")}'`;
