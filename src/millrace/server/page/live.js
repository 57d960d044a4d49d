/** The live queries of this page, over the client that any application uses, and SQL for them. */

import { connect } from "/millrace.js";
import { token } from "./api.js";

let connection = null, secret = null;

/** The one connection of this page; another one after the user has given another token. */
export function live() {
  if (connection === null || secret !== token()) {
    connection?.close();
    secret = token();
    connection = connect(location.origin, { token: secret ?? undefined });
  }
  return connection;
}

/** A name as SQL. */
export const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

/** A text as SQL. */
export const text = (value) => `'${value.replaceAll("'", "''")}'`;
