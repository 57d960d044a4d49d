/** How to have what is on the screen elsewhere: the same in curl, Python, JavaScript and SQL. */

import { token } from "./api.js";
import { fill, h } from "./dom.js";

const word = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const quoted = (text) => JSON.stringify(text);
const part = encodeURIComponent;

/** The command, with the place of a token if the server wants one. */
const curl = (...words) => ["curl", ...(token() ? ['-H "Authorization: Bearer $TOKEN"'] : []), ...words].join(" ");
const python = (at, rest) => `import millrace\n\nmillrace.connect(${quoted(at)}${token() ? ", token=TOKEN" : ""})${rest}`;
const javascript = (sql, at) => `import { connect } from "${at}/millrace.js";\n\nconst rows = connect("${at}"${token() ? ", { token: TOKEN }" : ""}).query(${quoted(sql)});\nrows.onChange(() => console.log(rows.version, rows.rows));`;
const following = (sql, at) => `import millrace\n\nwith millrace.connect(${quoted(at)}${token() ? ", token=TOKEN" : ""}).live(${quoted(sql)}) as rows:\n    for change in rows:\n        print(change.version, rows.rows)`;

const WAYS = {
  pipeline: {
    curl: ({ pipeline }, at) => curl(`${at}/pipelines/${part(pipeline)}`),
    Shell: () => "millrace status",
    Prometheus: (_, at) => curl(`${at}/metrics`),
  },
  view: {
    curl: ({ view }, at) => curl(word(`${at}/views/${part(view)}?limit=10`)),
    Python: ({ view }, at) => python(at, `.view(${quoted(view)}).to_pandas()`),
    JavaScript: ({ sql }, at) => javascript(sql, at),
    SQL: ({ sql }) => sql,
  },
  query: {
    curl: ({ sql }, at) => curl(`-N --get ${at}/live --data-urlencode ${word(`sql=${sql}`)}`),
    Python: ({ sql }, at) => following(sql, at),
    JavaScript: ({ sql }, at) => javascript(sql, at),
    SQL: ({ sql }) => sql,
  },
  topic: {
    curl: ({ topic }, at) => curl(`-H 'Content-Type: application/json' -d '{"field": "value"}' ${at}/topics/${part(topic)}`),
    Python: ({ topic }, at) => python(at, `.send(${quoted(topic)}, [{"field": "value"}])`),
    Shell: ({ topic }) => `millrace send ${topic} records.json`,
  },
  dead: {
    curl: ({ pipeline }, at) => curl(`${at}/pipelines/${part(pipeline)}/dead`),
    Python: ({ pipeline }, at) => python(at, `.dead(${quoted(pipeline)}).list().to_pandas()`),
    Shell: ({ pipeline }) => `millrace dead list ${pipeline}`,
  },
};

/** Buttons that show one way each; `given` is asked when one is pressed. */
export function use(kind, given) {
  const code = h("pre", { hidden: true, tabindex: "0", role: "region", "aria-label": "Code" }, h("code"));
  const copy = h("button", { type: "button", hidden: true, onclick: async () => {
    await navigator.clipboard.writeText(code.textContent);
    fill(copy, "Copied");
  } }, "Copy");
  const buttons = Object.entries(WAYS[kind]).map(([name, way]) => h("button", { type: "button", "aria-pressed": "false",
    onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      fill(code.firstChild, way(given(), location.origin));
      code.hidden = false;
      copy.hidden = !navigator.clipboard; // browsers have none on pages of plain HTTP from elsewhere
      fill(copy, "Copy");
    } }, name));
  return h("div", { class: "use" }, h("div", { class: "bar" }, buttons, copy), code);
}
