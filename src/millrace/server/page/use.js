/** How to have what is on the screen elsewhere: the same in curl, Python, JavaScript and SQL. */

import { fill, h } from "./dom.js";

const one = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const python = (text) => JSON.stringify(text);

const WAYS = {
  pipeline: ({ pipeline }, at) => ({
    curl: `curl ${at}/pipelines/${pipeline}`,
    Shell: `millrace status`,
    Prometheus: `curl ${at}/metrics`,
  }),
  view: ({ view, sql }, at) => ({
    SQL: sql,
    Python: `import millrace\n\nmillrace.connect(${python(at)}).view(${python(view)}).to_pandas()`,
    curl: `curl '${at}/views/${view}?limit=10'`,
    JavaScript: live(sql, at),
  }),
  query: ({ sql }, at) => ({
    JavaScript: live(sql, at),
    Python: `import millrace\n\nwith millrace.connect(${python(at)}).live(${python(sql)}) as rows:\n    for change in rows:\n        print(change.version, rows.rows)`,
    curl: `curl -N --get ${at}/live --data-urlencode ${one(`sql=${sql}`)}`,
  }),
  topic: ({ topic }, at) => ({
    curl: `curl -H 'Content-Type: application/json' -d '{"field": "value"}' ${at}/topics/${topic}`,
    Shell: `millrace send ${topic} records.json`,
    Python: `import millrace\n\nmillrace.connect(${python(at)}).send(${python(topic)}, [{"field": "value"}])`,
  }),
  dead: ({ pipeline }, at) => ({
    Shell: `millrace dead list ${pipeline}`,
    curl: `curl ${at}/pipelines/${pipeline}/dead`,
    Python: `import millrace\n\nmillrace.connect(${python(at)}).dead(${python(pipeline)}).list().to_pandas()`,
  }),
};

const live = (sql, at) =>
  `import { connect } from "${at}/millrace.js";\n\nconst rows = connect("${at}").query(${JSON.stringify(sql)});\nrows.onChange(() => console.log(rows.version, rows.rows));`;

/** Buttons that show one way each; `given` is asked when one is pressed. */
export function use(kind, given) {
  const code = h("pre", { hidden: true, tabindex: "0" }, h("code"));
  const copy = h("button", { type: "button", class: "plain", hidden: true,
    onclick: () => navigator.clipboard?.writeText(code.textContent) }, "Copy");
  const buttons = Object.keys(WAYS[kind](sample, location.origin)).map((way) => h("button", { type: "button", class: "plain",
    "aria-pressed": "false", onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.target));
      code.hidden = copy.hidden = false;
      fill(code.firstChild, WAYS[kind](given(), location.origin)[way]);
    } }, way));
  return h("div", { class: "use" }, h("div", { class: "bar" }, buttons, copy), code);
}

const sample = { pipeline: "", view: "", sql: "", topic: "" };
