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
const AGAIN = 1000; // milliseconds
const content = document.getElementById("content"), health = document.getElementById("health");
let shown = null;
let seesPipelines = true; // a token may be for some views only

/** A part of the page while it is shown. */
class Page {
  left = false;
  #leaving = [];
  content = h("div", {}, h("p", { class: "quiet" }, "Loading…"));

  /** Call a function when another part is shown. */
  onLeave(work) {
    if (this.left) work();
    else this.#leaving.push(work);
  }

  leave() {
    this.left = true;
    for (const work of this.#leaving) work();
  }

  /** Say that a request failed; null after one that did not. */
  trouble(error) {
    if (this.left || !error) return;
    if (error instanceof Refused && error.status === 401) askForToken(error);
    else fill(health, h("p", { class: "health bad", role: "alert" },
      error instanceof Refused ? error.message : "The server cannot be reached; trying again."));
  }
}

function askForToken({ message }) {
  if (document.getElementById("token")) return;
  shown?.leave();
  fill(health);
  const box = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  content.replaceChildren(h("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    setToken(box.value.trim());
    seesPipelines = true;
    box.remove();
    show();
  } }, h("h1", {}, "Token"), h("p", { class: "quiet" }, `${message[0].toUpperCase()}${message.slice(1)}.`),
  h("label", { for: "token" }, "Token of scope read or admin"), box, h("button", { type: "submit" }, "Use it"),
  h("p", { class: "quiet" }, "It is kept until this tab is closed.")));
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
  if (health.querySelector("[role=alert]")) fill(health); // that of the part before
  content.replaceChildren(h("h1", { class: "unseen" }, PAGES[chosen][0]), page.content);
  try {
    await PAGES[chosen][1](page, rest.length ? decodeURIComponent(rest.join("/")) : undefined);
  } catch (error) {
    page.trouble(error);
    setTimeout(() => page.left || show(), AGAIN);
  }
}

/** Show the health of all pipelines for as long as the page is open. */
async function watch() {
  const page = shown;
  try {
    if (seesPipelines && !document.getElementById("token")) fill(health, healthLines(await get("/pipelines")));
  } catch (error) {
    if (error instanceof Refused && error.status === 403) seesPipelines = false;
    else page.trouble(error);
  }
  setTimeout(watch, document.hidden ? 5 * AGAIN : AGAIN);
}

addEventListener("hashchange", show);
show();
watch();
