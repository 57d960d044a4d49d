/** The topics of the log: partitions, consumers and their lag, and the newest records with a filter. */

import { get, repeat } from "./api.js";
import { count, fill, h, table } from "./dom.js";
import { use } from "./use.js";

export function topics(page, chosen) {
  const list = h("div"), records = h("div"), note = h("p", { class: "quiet", role: "status" });
  const filter = h("input", { type: "search", placeholder: "records that hold a text", "aria-label": "Filter" });
  const title = h("h2"), tail = h("section", { hidden: true }, h("div", { class: "bar" }, title, filter, note), records);
  page.content.replaceChildren(h("section", {}, h("h2", {}, "Topics"), list), tail,
    h("section", {}, h("h2", {}, "Use this"), use("topic", () => ({ topic: name ?? "TOPIC" }))));
  let name = chosen;
  repeat(page, 1000, async () => {
    const known = await get("/topics");
    tail.hidden = !known.length;
    if (!known.length) {
      fill(list, h("p", { class: "quiet" }, "There are no topics yet. Create one: millrace topics create plays"));
      return;
    }
    const topic = known.find((each) => each.topic === name) ?? known[0];
    name = topic.topic;
    const sum = (numbers) => numbers.reduce((one, other) => one + other, 0);
    fill(list, table("Offsets are first to next, by partition", ["topic", "records", "partitions", "offsets", "consumers, with records to read"], known.map((each) => [
      h("a", { href: `#/topics/${encodeURIComponent(each.topic)}`, "aria-current": each === topic ? "page" : null }, each.topic),
      sum(each.ends) - sum(each.starts), each.partitions,
      each.ends.map((end, part) => `${part}: ${count(each.starts[part])} to ${count(end)}`).join(", "),
      Object.entries(each.behind).map(([group, lag]) => `${group} ${count(lag)}`).join(", ") || "none"])));
    fill(title, `Newest records of ${name}`);
    const text = filter.value;
    const found = await get(`/topics/${encodeURIComponent(name)}/records?${new URLSearchParams({ last: 50, ...(text ? { contains: text } : {}) })}`);
    fill(note, text ? `${count(found.records.length)} of the last ${count(found.scanned)} records` : "");
    fill(records, found.records.length ? table("Newest first", ["time (UTC)", "partition", "offset", "key", "value"],
      found.records.reverse().map((record) => [record.time.slice(11, 23), record.partition, record.offset, record.key,
        record.value === null ? null : h("code", {}, record.value)])) : h("p", { class: "quiet" }, text ? "No record holds this text." : "It has no records yet."));
  });
}
