// The table of shards; hidden where one server holds the whole model.

import { byId, make, mark, say } from "./dom.js";
import { UNKNOWN, bytes, count } from "./format.js";

const COLUMNS = [
  ["shard", (one) => String(one.index)],
  ["state", stateOf],
  ["address", (one) => one.address || UNKNOWN],
  ["elements", (one) => `${count(one.begin)} to ${count(one.end)}`],
  ["clock", (one) => count(one.clock)],
  ["memory", (one) => bytes(one.anonymous_bytes)],
];

function stateOf(shard) {
  return shard.ready ? "ready" : shard.address ? "starting" : "lost";
}

export class ShardTable {
  constructor() {
    this.panel = byId("shards");
    this.body = this.panel.querySelector("tbody");
    const heads = COLUMNS.map(([name]) => make("th", { scope: "col" }, name));
    this.panel.querySelector("thead").append(make("tr", {}, ...heads));
  }

  set(shards) {
    mark(this.panel, "hidden", shards ? null : "");
    if (!shards) return;
    const place = shards.primary ? ` This is shard ${shards.index} of ${shards.count}; the primary is ${shards.primary}.` : "";
    say(byId("shards-place"), place);
    while (this.body.children.length > shards.servers.length) this.body.lastChild.remove();
    shards.servers.forEach((shard, index) => {
      const row = this.body.children[index] ?? this.body.appendChild(make("tr", {}, ...COLUMNS.map(() => make("td"))));
      mark(row, "data-lost", shard.ready ? null : "");
      COLUMNS.forEach(([, show], column) => say(row.children[column], show(shard)));
    });
  }
}
