/** A shared to-do list: each action is a record of a topic, and the list is a live query over the view that it makes. */

import { connect } from "/millrace.js";

const form = document.getElementById("add"), text = document.getElementById("text");
const list = document.getElementById("items"), about = document.getElementById("about");

const SQL = "SELECT id, text, action FROM todo_items WHERE action <> 'remove' ORDER BY added, id LIMIT 200";
const connection = connect(location.origin);
watch();

function watch() {
  const items = connection.query(SQL);
  items.onChange(() => {
    list.replaceChildren(...items.rows.map(line));
    about.textContent = `${items.rows.filter((item) => item.action !== "done").length} to do, version ${items.version}`;
  });
  items.onError((error) => {
    about.textContent = "There is no list yet: the first item that is added makes it.";
    if (error.kind === "not-found") setTimeout(watch, 500);
    else about.textContent = error.message;
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send("add", { id: crypto.randomUUID(), text: text.value });
  text.value = "";
});

/** Send an action; the list changes when the view does, here as in every other window. */
async function send(action, { id, text }) {
  try {
    const answer = await fetch("/topics/todo", { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ id, text, action, at: new Date().toISOString() }) });
    if (!answer.ok) about.textContent = (await answer.json()).error;
  } catch {
    about.textContent = "The server cannot be reached; try again.";
  }
}

function line(item) {
  const row = document.createElement("li"), label = document.createElement("label");
  const box = document.createElement("input"), remove = document.createElement("button");
  Object.assign(box, { type: "checkbox", checked: item.action === "done", onchange: () => send(box.checked ? "done" : "undone", item) });
  Object.assign(remove, { type: "button", textContent: "Remove", ariaLabel: `Remove ${item.text}`, onclick: () => send("remove", item) });
  row.className = item.action;
  label.append(box, " ", item.text);
  row.append(label, remove);
  return row;
}
