// The endpoints of a pool as rows of a table, or as tiles.

import { h, setAttribute, setText } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { draw, sparkline } from "./spark.js";
import { Virtual } from "./virtual.js";

const load = endpoint => (endpoint.queue ?? 0) + (endpoint.running ?? 0);

/** Name, heading, the value that is sorted by, and its text. `hide`: from which width on there is room for it. */
const COLUMNS = [
  { name: "name", title: "Endpoint", key: endpoint => endpoint.name },
  { name: "state", title: "State", key: (endpoint, pool, now) => pool.state(endpoint, now) },
  { name: "role", title: "Role", hide: "wide", key: endpoint => endpoint.role, text: endpoint => endpoint.role || "both" },
  { name: "queue", title: "Queue", number: true, key: endpoint => endpoint.queue, text: endpoint => count(endpoint.queue) },
  { name: "running", title: "Running", number: true, key: endpoint => endpoint.running, text: endpoint => count(endpoint.running) },
  { name: "kv_cache", title: "KV", number: true, key: endpoint => endpoint.kv_cache, text: endpoint => percent(endpoint.kv_cache) },
  { name: "in_flight", title: "In flight", number: true, key: endpoint => endpoint.in_flight, text: endpoint => count(endpoint.in_flight) },
  { name: "age", title: "Age", number: true, hide: "medium", key: (endpoint, pool, now) => pool.age(endpoint, now),
    text: (endpoint, pool, now) => seconds(pool.age(endpoint, now)) },
  { name: "spark", title: "10 minutes", hide: "medium", key: load },
  { name: "adapters", title: "Adapters", hide: "wide", key: endpoint => endpoint.adapters.length,
    text: endpoint => endpoint.adapters.join(", ") },
  { name: "collector", title: "Collector", hide: "wide", key: endpoint => endpoint.collector, text: endpoint => endpoint.collector },
];

/** Sizes in rem, as the style sheet has them: a wall display has larger letters. */
const ROW = 2.4;
const TILE = { width: 11, height: 6.2 };

const STATES = { up: "up", down: "down", stale: "stale", draining: "draining", unknown: "no metrics" };

const compare = (a, b) => {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
};

export class Endpoints {
  #pool; #open; #wanted; #sort = { column: COLUMNS[0], descending: false }; #sparks = -1;
  #headings = new Map();

  /** `open(endpoint)` shows one; `wanted(endpoints)` is told which ones are in view. */
  constructor(pool, open, wanted) {
    this.#pool = pool;
    this.#open = open;
    this.#wanted = wanted;
    this.tiles = false;
    this.element = h("div", { class: "endpoints" }, this.#makeTable(), this.#makeTiles());
    new ResizeObserver(() => {
      this.rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
      this.render(performance.now());
    }).observe(this.element);
    this.element.addEventListener("keydown", event => this.#key(event));
  }

  #makeTable() {
    const heading = column => {
      const button = h("button", { type: "button", click: () => this.#sortBy(column) }, column.title);
      const cell = h("th", { scope: "col", class: `${column.number ? "number " : ""}${column.name} ${column.hide ?? ""}` }, button);
      this.#headings.set(column, cell);
      return cell;
    };
    const above = h("tr", { class: "spacer", "aria-hidden": "true" }), below = h("tr", { class: "spacer", "aria-hidden": "true" });
    this.rows = h("tbody", {}, above, below);
    this.grid = h("table", { class: "pool" }, h("caption", { class: "hidden" }, "Endpoints"),
      h("thead", {}, h("tr", { "aria-rowindex": 1 }, COLUMNS.map(heading))), this.rows);
    this.scroller = h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Endpoints as a table",
      scroll: () => this.render(performance.now()) }, this.grid);
    this.table = new Virtual({
      scroller: this.scroller, body: this.rows, spacers: [above, below], perRow: () => 1, rowHeight: () => ROW * this.rem,
      make: () => this.#makeRow(), bind: (row, endpoint, index) => this.#bindRow(row, endpoint, index),
    });
    return this.scroller;
  }

  #makeTiles() {
    const above = h("div", { class: "spacer" }), below = h("div", { class: "spacer" });
    this.board = h("div", { class: "tiles" }, above, below);
    this.wall = h("div", { class: "scroll tall", hidden: true, tabindex: 0, role: "region", "aria-label": "Endpoints as tiles",
      scroll: () => this.render(performance.now()) }, this.board);
    this.mosaic = new Virtual({
      scroller: this.wall, body: this.board, spacers: [above, below],
      perRow: () => Math.max(1, Math.floor(this.board.clientWidth / (TILE.width * this.rem))), rowHeight: () => TILE.height * this.rem,
      make: () => this.#makeTile(), bind: (tile, endpoint) => this.#bindTile(tile, endpoint),
    });
    return this.wall;
  }

  #makeRow() {
    const button = h("button", { type: "button", class: "link", click: event => this.#open(event.currentTarget.endpoint) });
    const badge = h("span", { class: "badge" });
    const bar = h("span", { class: "bar", "aria-hidden": "true" }), share = h("span", {});
    const spark = sparkline();
    const row = h("tr", {}, COLUMNS.map(column => {
      const inside = { name: [button], state: [badge], kv_cache: [bar, share], spark: [spark] }[column.name] ?? [];
      return h(column.name === "name" ? "th" : "td", {
        class: `${column.number ? "number " : ""}${column.name} ${column.hide ?? ""}`, scope: column.name === "name" && "row",
      }, inside);
    }));
    row.parts = { button, badge, bar, share, spark };
    return row;
  }

  #bindRow(row, endpoint, index) {
    const { button, badge, bar, share, spark } = row.parts, pool = this.#pool, now = this.now;
    setAttribute(row, "aria-rowindex", index + 2);
    const other = button.endpoint !== endpoint;
    button.endpoint = endpoint;
    setText(button, endpoint.name);
    const state = pool.state(endpoint, now);
    setText(badge, STATES[state]);
    setAttribute(badge, "data-state", state);
    COLUMNS.forEach((column, at) => {
      if (column.name === "kv_cache") setText(share, column.text(endpoint));
      else if (column.text) setText(row.children[at], column.text(endpoint, pool, now));
    });
    this.#fill(bar, endpoint.kv_cache);
    if (other || this.#sparks !== pool.at) this.#draw(spark, endpoint);
  }

  #makeTile() {
    const name = h("strong", {}), state = h("span", { class: "badge" }), bar = h("span", { class: "bar", "aria-hidden": "true" });
    const numbers = h("span", { class: "numbers" }), age = h("span", { class: "age" });
    const tile = h("button", { type: "button", class: "tile", click: event => this.#open(event.currentTarget.endpoint) },
      h("span", { class: "top" }, name, state), bar, numbers, age);
    tile.parts = { name, state, bar, numbers, age };
    return tile;
  }

  #bindTile(tile, endpoint) {
    const { name, state, bar, numbers, age } = tile.parts, pool = this.#pool, now = this.now;
    tile.endpoint = endpoint;
    setText(name, endpoint.name);
    const is = pool.state(endpoint, now);
    setText(state, STATES[is]);
    setAttribute(tile, "data-state", is);
    setAttribute(state, "data-state", is);
    this.#fill(bar, endpoint.kv_cache);
    setText(numbers, `${count(endpoint.queue)} queued · ${count(endpoint.running)} running`);
    setText(age, `${count(endpoint.in_flight)} in flight · KV ${percent(endpoint.kv_cache)}`);
  }

  #fill(bar, share) {
    const filled = Math.max(0, Math.min(share ?? 0, 1));
    if (bar.filled === filled) return;
    bar.filled = filled;
    bar.style.setProperty("--share", filled);
    setAttribute(bar, "data-level", filled > 0.9 ? "high" : filled > 0.7 ? "medium" : "low");
  }

  #draw(svg, endpoint) {
    const queue = this.#pool.series(endpoint, "queue"), running = this.#pool.series(endpoint, "running");
    draw(svg, queue.map((value, at) => value + running[at]), { name: "Queued and running", least: 4, format: count });
  }

  #sortBy(column) {
    this.#sort = { column, descending: this.#sort.column === column ? !this.#sort.descending : Boolean(column.number || column.name === "spark") };
    for (const [of, cell] of this.#headings) {
      setAttribute(cell, "aria-sort", of === column && (this.#sort.descending ? "descending" : "ascending"));
    }
    this.arrange(this.list, performance.now());
  }

  /** Shows these endpoints, sorted. */
  arrange(endpoints, now) {
    const { column, descending } = this.#sort, pool = this.#pool;
    const keyed = endpoints.map(endpoint => [column.key(endpoint, pool, now), endpoint]);
    keyed.sort(([a, one], [b, other]) => {
      const order = compare(a, b);
      return (descending && a !== null && b !== null ? -order : order) || compare(one.name, other.name);
    });
    this.list = keyed.map(([, endpoint]) => endpoint);
    this.render(now);
  }

  list = [];
  rem = 15;

  /** Shows what the visible endpoints are now. */
  render(now) {
    this.now = now;
    setAttribute(this.grid, "aria-rowcount", this.list.length + 1);
    const shown = this.tiles ? this.mosaic : this.table;
    setAttribute(this.wall, "hidden", !this.tiles);
    setAttribute(this.scroller, "hidden", this.tiles);
    shown.items = this.list;
    const columns = shown.perRow(), height = Math.ceil(this.list.length / columns) * shown.rowHeight() + 4 * this.rem;
    if (height !== this.height) {
      this.height = height;
      this.element.style.setProperty("--content", `${height}px`);
      this.element.style.setProperty("--columns", columns);
    }
    const visible = shown.render();
    if (this.#sparks !== this.#pool.at) this.#sparks = this.#pool.at;
    if (!this.tiles) this.#wanted(visible);
  }

  /** Draws the histories anew, because older samples have come. */
  redraw() {
    this.#sparks = -1;
    this.render(performance.now());
  }

  #key(event) {
    const endpoint = event.target.endpoint;
    if (!endpoint || event.altKey || event.ctrlKey || event.metaKey) return;
    const shown = this.tiles ? this.mosaic : this.table, row = shown.perRow();
    const steps = { ArrowDown: row, ArrowUp: -row, Home: -Infinity, End: Infinity };
    if (this.tiles) Object.assign(steps, { ArrowRight: 1, ArrowLeft: -1 });
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(this.list.indexOf(endpoint) + step, this.list.length - 1));
    this.now = performance.now();
    shown.reveal(index);
    const element = shown.element(this.list[index]);
    (this.tiles ? element : element.parts.button).focus({ preventScroll: true });
  }
}
