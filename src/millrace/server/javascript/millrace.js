/**
 * Live queries over Millrace: `rows` is always the result of a query as it is now.
 *
 *     const rows = connect("http://localhost:8080").query("SELECT track, plays FROM hourly_plays ORDER BY plays DESC LIMIT 10");
 *     rows.onChange(() => console.log(rows.version, rows.rows));
 *
 * All queries of a connection share one WebSocket. When it breaks, the client connects again after a random time that
 * grows up to half a minute, and goes on where it was: no change is missed, none is applied twice. After each version
 * the client compares a checksum with the server's, and reads the result anew if they differ. docs/live.md is the protocol.
 */

const FIRST = 250, LONGEST = 30_000; // milliseconds between attempts to connect
const IDLE = 1_000; // milliseconds for which a connection without queries stays open

/** A connection to the server with this address; it is opened with the first query. `token` is one of `millrace tokens`. */
export function connect(url, { token } = {}) {
  return new Connection(url, token);
}

class Connection {
  #address;
  #protocols;
  #socket = null;
  #queries = new Map();
  #attempts = 0;
  #timer = null;
  #idle = null;
  #next = 0;

  constructor(url, token) {
    const address = new URL("/live", url);
    address.protocol = address.protocol.replace("http", "ws");
    this.#address = address;
    this.#protocols = ["millrace", ...(token ? [`token.${token}`] : [])];
  }

  /** Watch a query. Options: `params` for $1 and so on, `minInterval` in seconds between two states, `upTo` a version. */
  query(sql, { params = [], minInterval = 0, upTo } = {}) {
    const sub = String(this.#next++);
    const asked = { type: "subscribe", sub, sql, params, min_interval: minInterval, ...(upTo === undefined ? {} : { up_to: upTo }) };
    const query = new LiveQuery(asked, (message) => this.#send(message), () => this.#leave(sub));
    this.#queries.set(sub, query);
    clearTimeout(this.#idle);
    if (this.#socket === null) this.#open();
    else this.#send(asked);
    return query;
  }

  /** End all queries. */
  close() {
    for (const query of [...this.#queries.values()]) query.close();
  }

  #open() {
    clearTimeout(this.#timer);
    const socket = this.#socket = new WebSocket(this.#address, this.#protocols);
    socket.onopen = () => {
      for (const query of this.#queries.values()) socket.send(JSON.stringify(query.greeting));
    };
    socket.onmessage = ({ data }) => {
      this.#attempts = 0;
      const message = JSON.parse(data);
      this.#queries.get(message.sub)?.take(message);
    };
    socket.onclose = ({ code, reason }) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      if (!this.#queries.size) return;
      if (code === 1008) { // refused: the token or the origin, which another attempt would not change
        for (const query of [...this.#queries.values()]) query.fail(new Error(reason || "the server refuses the connection"));
        this.#queries.clear();
        return;
      }
      for (const query of this.#queries.values()) query.lost();
      const most = Math.min(LONGEST, FIRST * 2 ** this.#attempts++);
      this.#timer = setTimeout(() => this.#open(), most * (0.5 + Math.random() / 2));
    };
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #leave(sub) {
    if (!this.#queries.delete(sub)) return;
    this.#send({ type: "unsubscribe", sub });
    if (this.#queries.size) return;
    clearTimeout(this.#timer);
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => {
      this.#socket?.close();
      this.#socket = null;
    }, IDLE);
  }
}

/** A query that is watched. */
class LiveQuery {
  /** The rows of the result as objects, in its order; a new array after each change. */
  rows = [];
  /** The id of each row: the key of the view, as JSON text. */
  ids = [];
  /** The version of the view that the rows are; null before the first. */
  version = null;
  /** The watermark of the pipeline as of that version, or null. */
  watermark = null;
  /** "connecting", "live", "reconnecting", or "closed". */
  state = "connecting";
  #asked;
  #send;
  #leave;
  #token = null;
  #columns = [];
  #sorted = false;
  #texts = new Map();
  #snapshot = null;
  #isResuming = false;
  #isStale = false;
  #pending = { added: [], changed: [], removed: [], snapshot: false };
  #onChange = [];
  #onError = [];

  constructor(asked, send, leave) {
    [this.#asked, this.#send, this.#leave] = [asked, send, leave];
  }

  /** Call a function after each version with {rows, added, changed, removed, snapshot, version}; the middle three are ids. */
  onChange(work) {
    this.#onChange.push(work);
    return this;
  }

  /** Call a function with the error if the query is refused. */
  onError(work) {
    this.#onError.push(work);
    return this;
  }

  /** Stop watching. */
  close() {
    this.state = "closed";
    this.#leave();
  }

  /** What to send when a connection opens. */
  get greeting() {
    this.#isResuming = this.#token !== null && this.version !== null;
    return this.#isResuming ? { type: "resume", sub: this.#asked.sub, token: this.#token, version: this.version } : this.#asked;
  }

  lost() {
    this.state = "reconnecting";
    this.#snapshot = null;
  }

  fail(error) {
    this.close();
    for (const work of this.#onError) work(error);
  }

  take(message) {
    if (this.#isStale && (message.type === "batch" || message.type === "progress")) return; // of the result before
    switch (message.type) {
      case "snapshot":
        this.#isStale = false;
        if (message.from === 0) this.#snapshot = [];
        this.#columns = message.columns;
        this.#sorted = message.sorted;
        this.#snapshot?.push(...message.rows);
        break;
      case "ready":
        this.#token = message.token;
        this.#isResuming = false;
        this.state = "live";
        if (this.#snapshot) this.#begin(this.#snapshot, message.version);
        break;
      case "batch":
        this.#apply(message);
        break;
      case "progress":
        this.#arrive(message);
        break;
      case "refetch":
        this.#snapshot = null;
        break;
      case "closed":
        this.#token = message.token;
        if (message.reason === "up_to") this.close();
        else this.#send(this.greeting);
        break;
      case "error":
        if (this.#isResuming) { // the server no longer knows the token: the result is read anew
          this.#readAnew();
          break;
        }
        this.fail(Object.assign(new Error(message.advice ? `${message.problem}; ${message.advice}` : message.problem), { kind: message.kind }));
        break;
    }
  }

  #begin(rows, version) {
    this.#snapshot = null;
    this.ids = rows.map(([id]) => id);
    this.#texts = new Map(rows);
    this.version = version;
    this.#pending.snapshot = true;
    this.#tell();
  }

  #apply({ version, removes, moves, changes, adds }) {
    const gone = new Set(removes), moved = new Set(moves.map(([id]) => id));
    if (gone.size || moved.size) this.ids = this.ids.filter((id) => !gone.has(id) && !moved.has(id));
    for (const id of removes) this.#texts.delete(id);
    for (const [id, row] of [...changes, ...adds]) this.#texts.set(id, row);
    const placed = [...moves, ...adds.map(([id, , place]) => [id, place ?? Infinity])].sort((one, other) => one[1] - other[1]);
    for (const [id, place] of placed) this.ids.splice(Math.min(place, this.ids.length), 0, id);
    this.version = version;
    this.#pending.removed.push(...removes);
    this.#pending.changed.push(...changes.map(([id]) => id));
    this.#pending.added.push(...adds.map(([id]) => id));
  }

  #arrive({ version, watermark, checksum, rows }) {
    [this.version, this.watermark] = [version, watermark];
    if (rows !== this.ids.length || checksum !== this.#checksum()) {
      this.#send({ type: "unsubscribe", sub: this.#asked.sub });
      this.#readAnew();
      return;
    }
    this.#tell();
  }

  #readAnew() {
    [this.#token, this.#isResuming, this.#isStale] = [null, false, true];
    this.#send(this.#asked);
  }

  #checksum() {
    let total = 0, before = "";
    for (const id of this.ids) {
      total = (total + crc32(before + id + JSON.stringify(this.#texts.get(id)))) >>> 0;
      if (this.#sorted) before = id;
    }
    return total;
  }

  #tell() {
    const { added, changed, removed, snapshot } = this.#pending;
    if (!snapshot && !added.length && !changed.length && !removed.length) return;
    this.#pending = { added: [], changed: [], removed: [], snapshot: false };
    this.rows = this.ids.map((id) => Object.fromEntries(this.#texts.get(id).map((value, place) => [this.#columns[place], value])));
    for (const work of this.#onChange) work({ rows: this.rows, added, changed, removed, snapshot, version: this.version });
  }
}

const TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  for (let bit = 0; bit < 8; bit++) number = number & 1 ? (number >>> 1) ^ 0xedb88320 : number >>> 1;
  return number;
});
const encoder = new TextEncoder();

function crc32(text) {
  let value = ~0;
  for (const byte of encoder.encode(text)) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return ~value >>> 0;
}
