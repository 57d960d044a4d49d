/** The page: which part is shown, the sentence of health above it, and what to do when the server cannot be reached. */

import { Refused, get, setToken } from "./api.js";
import { consolePage } from "./console.js";
import { dead } from "./dead.js";
import { fill, h } from "./dom.js";
import { healthLines } from "./health.js";
import { overview } from "./overview.js";
import { topics } from "./topics.js";
import { views } from "./views.js";

const PAGES = { pipelines: ["Pipelines", overview], views: ["Views", views], console: ["Live query", consolePage],
  topics: ["Topics", topics], dead: ["Dead letters", dead] };
const content = document.getElementById("content"), health = document.getElementById("health");
let shown = null;

/** What a part of the page needs of the whole. */
class Page {
  left = false;
  #leaving = [];
  content = content;

  onLeave(work) {
    this.#leaving.push(work);
  }

  leave() {
    this.left = true;
    for (const work of this.#leaving) work();
  }

  statuses(statuses) {
    if (!this.left) fill(health, healthLines(statuses));
  }

  /** Say that a request failed; null after one that did not. */
  trouble(error) {
    if (this.left || !error) return;
    if (error instanceof Refused && error.status === 401) askForToken();
    else fill(health, h("p", { class: "health bad" }, error instanceof Refused ? error.message : "The server cannot be reached; trying again."));
  }
}

function askForToken() {
  shown?.leave();
  const box = h("input", { type: "password", id: "token", autocomplete: "off" });
  content.replaceChildren(h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); setToken(box.value); show(); } },
    h("label", { for: "token" }, "This server wants a token; millrace tokens create makes one."), box,
    h("button", { type: "submit" }, "Use it")));
  box.focus();
}

async function show() {
  shown?.leave();
  const [part, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const chosen = part in PAGES ? part : "pipelines";
  fill(document.getElementById("pages"), Object.entries(PAGES).map(([name, [title]]) =>
    h("a", { href: `#/${name}`, "aria-current": name === chosen ? "page" : null }, title)));
  document.title = `${PAGES[chosen][0]} · Millrace`;
  const page = shown = new Page();
  try {
    await PAGES[chosen][1](page, rest.length ? decodeURIComponent(rest.join("/")) : undefined);
  } catch (error) {
    page.trouble(error);
    setTimeout(() => page.left || show(), 2000);
  }
}

async function watch() {
  try {
    const statuses = await get("/pipelines");
    fill(health, healthLines(statuses));
  } catch {
    // The part that is shown tells.
  }
  setTimeout(watch, 2000);
}

addEventListener("hashchange", show);
show();
watch();
