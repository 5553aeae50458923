// The page about the pool: a summary, its endpoints, the members of each tier.

import { follow, get } from "./api.js";
import { Detail } from "./detail.js";
import { h, setAttribute, setText } from "./dom.js";
import { Endpoints } from "./endpoints.js";
import { count, percent, plural, seconds } from "./format.js";
import { Members } from "./members.js";
import { Pool, STEP } from "./model.js";

const QUIET = 500;
/** Milliseconds without news after which ages are rendered anew. */
const ARRANGE = 1000;
/** Milliseconds between two sortings by numbers that change. */
const BATCH = 50;

const FIGURES = [
  ["Endpoints", all => count(all.length)],
  ["Up", (all, up) => count(up.length)],
  ["Queued", all => count(sum(all, "queue"))],
  ["Running", all => count(sum(all, "running"))],
  ["In flight", all => count(sum(all, "in_flight"))],
  ["KV cache, mean", all => {
    const known = all.filter(endpoint => endpoint.kv_cache !== null);
    return percent(known.length ? sum(known, "kv_cache") / known.length : null);
  }],
];
const sum = (endpoints, name) => endpoints.reduce((total, endpoint) => total + (endpoint[name] ?? 0), 0);

export class PoolPage {
  #model = new Pool(); #fetched = new Set(); #arrangedAt = 0; #dirty = false; #version = -1; #fetching = false; #frame; #tickedAt = 0;

  /** `onAbout` hears which pool it is. */
  constructor(onState, onAbout) {
    this.onState = onState;
    this.onAbout = onAbout;
    this.detail = new Detail(this.#model);
    this.endpoints = new Endpoints(this.#model, endpoint => this.#open(endpoint), visible => this.#want(visible));
    this.members = new Members();
    this.figures = FIGURES.map(([title, read]) => ({ read, value: h("dd", {}, "–"), title }));
    this.search = h("input", { type: "search", id: "search", placeholder: "name, label=value, adapter …", input: () => this.#arrange() });
    const option = (value, text) => h("option", { value }, text);
    this.state = h("select", { id: "state", change: () => this.#arrange() }, option("", "all"),
      ...["up", "down", "stale", "draining", "unknown"].map(state => option(state, state)));
    this.role = h("select", { id: "role", change: () => this.#arrange() }, option("", "all"));
    this.found = h("output", { for: "search state role" });
    this.shape = h("button", { type: "button", "aria-pressed": "false", click: () => this.#toggle() }, "Tiles");
    this.element = h("div", {},
      h("h1", {}, "Pool"),
      h("dl", { class: "figures" }, this.figures.map(({ title, value }) => h("div", {}, h("dt", {}, title), value))),
      h("div", { class: "controls" },
        h("label", { for: "search" }, "Filter"), this.search,
        h("label", { for: "state" }, "State"), this.state,
        h("label", { for: "role" }, "Role"), this.role,
        this.shape, this.found),
      this.endpoints.element, this.members.element, this.detail.element);
  }

  start() {
    const apply = content => {
      this.#dirty = true;
      if (content.about) this.onAbout(content.about);
      this.#frame ??= requestAnimationFrame(() => this.#tick());
    };
    this.stop = follow("api/pool/stream", {
      whole: content => { this.#model.whole(content); apply(content) },
      changes: content => { this.#model.changes(content); apply(content) },
    }, this.onState);
    this.timers = [setInterval(() => this.#age(), QUIET), setInterval(() => { this.#model.sample(); this.#dirty = true }, STEP * 1000)];
  }

  end() {
    this.stop();
    this.timers.forEach(clearInterval);
    cancelAnimationFrame(this.#frame);
    this.detail.element.close();
  }

  // Ages grow without news, too.
  #age() {
    if (!document.hidden && performance.now() - this.#tickedAt > QUIET / 2) this.#tick();
  }

  // Shows the model as it is now: once for each event of the stream, and at most once for each frame of the screen.
  #tick() {
    cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    const now = this.#tickedAt = performance.now();
    if (this.#model.version !== this.#version) {
      this.#version = this.#model.version;
      this.#roles();
      this.#arrange();
    } else if (this.#dirty && now - this.#arrangedAt > ARRANGE) this.#arrange();
    else this.endpoints.render(now);
    this.detail.render(now);
    if (!this.#dirty) return;
    this.#dirty = false;
    const all = [...this.#model.endpoints.values()], up = all.filter(endpoint => this.#model.state(endpoint, now) === "up");
    for (const { read, value } of this.figures) setText(value, read(all, up));
    this.members.render(this.#model.members, this.#model.problems);
  }

  #roles() {
    const roles = [...new Set([...this.#model.endpoints.values()].map(endpoint => endpoint.role))].filter(Boolean).sort();
    if (roles.join() === this.role.shown) return;
    this.role.shown = roles.join();
    const chosen = this.role.value;
    this.role.replaceChildren(h("option", { value: "" }, "all"), ...roles.map(role => h("option", { value: role }, role)));
    this.role.value = roles.includes(chosen) ? chosen : "";
  }

  #arrange() {
    const now = this.#arrangedAt = performance.now(), model = this.#model;
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...model.endpoints.values()];
    const found = all.filter(endpoint => words.every(word => endpoint.text.includes(word))
      && (!this.state.value || model.state(endpoint, now) === this.state.value)
      && (!this.role.value || endpoint.role === this.role.value));
    setText(this.found, found.length === all.length ? plural(all.length, "endpoint") : `${found.length} of ${plural(all.length, "endpoint")}`);
    this.endpoints.arrange(found, now);
  }

  #toggle() {
    this.endpoints.tiles = !this.endpoints.tiles;
    setAttribute(this.shape, "aria-pressed", this.endpoints.tiles);
    this.#arrange();
  }

  #open(endpoint) {
    this.#want([endpoint]);
    this.detail.open(endpoint);
  }

  // Asks for the histories of endpoints that are in view for the first time.
  async #want(endpoints) {
    if (this.#fetching) return;
    const asked = endpoints.filter(endpoint => !this.#fetched.has(endpoint.id)).slice(0, BATCH);
    if (!asked.length) return;
    this.#fetching = true;
    try {
      const query = new URLSearchParams(asked.map(endpoint => ["endpoint", endpoint.id]));
      const { endpoints: kept } = await get(`api/pool/history?${query}`);
      for (const endpoint of asked) {
        this.#fetched.add(endpoint.id);
        if (kept[endpoint.id]) this.#model.remember(endpoint, kept[endpoint.id]);
      }
      this.endpoints.redraw();
    } catch {
      // the lines begin now; asked again with the next rendering
    } finally {
      setTimeout(() => { this.#fetching = false }, 250);
    }
  }
}
