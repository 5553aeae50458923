// One endpoint in full, in a dialog.

import { get, post } from "./api.js";
import { definitions, h, replace, setAttribute, setText, table } from "./dom.js";
import { count, number, percent, seconds } from "./format.js";
import { draw, sparkline } from "./spark.js";

const CHARTS = [
  ["queue", "Queued requests", count, 4],
  ["running", "Running requests", count, 4],
  ["kv_cache", "KV cache", percent, 1],
  ["in_flight", "In flight from all pickers", count, 4],
];

export class Detail {
  #pool; #endpoint = null; #live = [];

  constructor(pool) {
    this.#pool = pool;
    this.element = h("dialog", { "aria-labelledby": "endpoint-name", close: () => { this.#endpoint = null } });
  }

  open(endpoint) {
    this.#endpoint = endpoint;
    const live = (read, node = h("span", {})) => {
      this.#live.push([node, read]);
      return node;
    };
    this.#live = [];
    const pool = this.#pool;
    const charts = CHARTS.map(([metric, title, format, least]) => {
      const svg = sparkline();
      return { metric, svg, options: { name: title, format, least },
        element: h("figure", {}, h("figcaption", {}, `${title}: `, live(() => format(endpoint[metric]))), svg) };
    });
    this.charts = charts;
    this.element.replaceChildren(
      h("form", { method: "dialog" },
        h("h2", { id: "endpoint-name" }, endpoint.name),
        h("button", { "aria-label": "Close" }, "Close")),
      definitions([
        ["State", live(now => pool.state(endpoint, now))],
        ["Metrics seen", live(now => `${seconds(pool.age(endpoint, now))} ago`)],
        ["Tokens in flight", live(() => count(endpoint.in_flight_tokens))],
        ["Id", endpoint.id], ["Address", endpoint.address], ["Role", endpoint.role || "both"],
        ["Engine", endpoint.engine || "recognized from its page"],
        ["Scraped by", live(() => endpoint.collector || "nobody")],
        ["Adapters loaded", live(() => endpoint.adapters.join(", ") || "none")],
        ["Models", live(() => endpoint.models.join(", ") || "unknown")],
      ]),
      ...(pool.about.actions ? [this.#actions(endpoint, live)] : []),
      h("p", {}, h("a", { href: `#/decisions?endpoint=${encodeURIComponent(endpoint.id)}`, click: () => this.element.close() },
        "Decisions for this endpoint")),
      h("div", { class: "charts" }, charts.map(chart => chart.element)),
      table("Labels", ["Label", "Value"], Object.entries(endpoint.labels)),
      this.attributes = h("div", {}));
    this.render(performance.now());
    this.element.showModal();
    this.#read(endpoint);
  }

  // A button that drains the endpoint, or ends that. The stream tells when the watcher has taken it up.
  #actions(endpoint, live) {
    const outcome = h("span", { role: "status" });
    const act = async () => {
      if (button.hasAttribute("aria-disabled")) return;
      const drain = !endpoint.draining;
      setAttribute(button, "aria-disabled", true);
      setText(outcome, drain ? "Asking the watcher to drain it …" : "Asking the watcher to undrain it …");
      try {
        await post("api/pool/drain", { endpoint: endpoint.id, drain });
        setText(outcome, drain ? "It finishes its requests, and gets no new ones." : "It gets requests again.");
      } catch (error) {
        setText(outcome, `The watcher hasn't confirmed it: ${error.message}`);
      } finally {
        setAttribute(button, "aria-disabled", null);
      }
    };
    const button = h("button", { type: "button", click: act }, live(() => endpoint.draining ? "Undrain" : "Drain"));
    return h("p", { class: "controls" }, button, outcome);
  }

  // Reads all attributes of the endpoint, again and again while it is shown.
  async #read(endpoint) {
    while (this.#endpoint === endpoint) {
      try {
        const { attributes } = await get(`api/pool/endpoint?${new URLSearchParams({ id: endpoint.id })}`);
        replace(this.attributes, table("Attributes", ["Attribute", "Value", "Age"], Object.entries(attributes).sort().map(
          ([name, { value, age }]) => [name, Array.isArray(value) ? value.join(", ") : number(value), seconds(age)])));
      } catch {
        // the page says that the console doesn't answer
      }
      await new Promise(resolve => { setTimeout(resolve, 1000) });
    }
  }

  /** Shows what the open endpoint is now. */
  render(now) {
    if (!this.#endpoint) return;
    for (const [node, read] of this.#live) setText(node, read(now));
    for (const { metric, svg, options } of this.charts) draw(svg, this.#pool.series(this.#endpoint, metric), options);
  }
}
