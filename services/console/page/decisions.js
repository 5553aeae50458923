// The last decisions of all pickers, and one of them in full.

import { follow, get, post } from "./api.js";
import { byEndpoint, compared } from "./compared.js";
import { h, note, replace, setText } from "./dom.js";
import { NONE, plural, seconds, time } from "./format.js";
import { picture } from "./picture.js";

/** Rows of the table; the pickers keep as many or more. */
const MOST = 200;

const outcome = decision => decision.refused ? `refused ${decision.refused.status}` : decision.state;
const status = decision => String(decision.refused?.status ?? decision.status ?? "");

const row = decision => h("tr", { "data-outcome": decision.refused ? "refused" : decision.state },
  h("th", { scope: "row" }, time(decision.at)),
  h("td", {}, h("a", { href: `#/decisions/${encodeURIComponent(decision.request_id)}` }, decision.request_id)),
  h("td", {}, decision.model, decision.target_model && decision.target_model !== decision.model ? ` → ${decision.target_model}` : ""),
  h("td", {}, decision.refused ? decision.refused.reason : decision.served_endpoint ?? decision.endpoint),
  h("td", {}, outcome(decision)),
  h("td", { class: "number" }, status(decision) || NONE),
  h("td", { class: "number wide" }, String(decision.priority)),
  h("td", { class: "number wide" }, seconds(decision.waited_seconds)),
  h("td", { class: "number" }, seconds(decision.duration_seconds)),
  h("td", { class: "wide" }, decision.picker));

const HEADINGS = [["Time"], ["Request"], ["Model"], ["Endpoint, or reason"], ["State"], ["Status", "number"], ["Priority", "number wide"],
  ["Waited", "number wide"], ["Duration", "number"], ["Picker", "wide"]];

export class DecisionsPage {
  #decisions = new Map(); #paused = false; #missing = []; #dirty = false; #request = null; #compared = "";

  constructor(onState, onAbout) {
    this.onState = onState;
    this.onAbout = onAbout;
    const filter = name => h("input", { type: "search", id: `by-${name}`, input: () => this.#render() });
    this.filters = { model: filter("model"), endpoint: filter("endpoint"), status: filter("status"), objective: filter("objective") };
    this.id = h("input", { type: "search", id: "request-id", placeholder: "x-request-id" });
    this.pause = h("button", { type: "button", "aria-pressed": "false", click: () => this.#toggle() }, "Pause");
    this.found = h("output", {});
    this.rows = h("tbody", {});
    this.summary = h("div", {});
    this.one = h("section", { "aria-label": "One decision", hidden: true });
    this.element = h("div", {},
      h("h1", {}, "Decisions"),
      h("form", { class: "controls", role: "search", submit: event => this.#find(event) },
        h("label", { for: "request-id" }, "Request id"), this.id, h("button", {}, "Find")),
      this.one,
      h("div", { class: "controls" },
        Object.entries(this.filters).map(([name, input]) => [h("label", { for: `by-${name}` }, name[0].toUpperCase() + name.slice(1)), input]).flat(),
        this.pause, this.found),
      this.summary,
      h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Last decisions" },
        h("table", { class: "decisions" }, h("caption", { class: "hidden" }, "Last decisions"),
          h("thead", {}, h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title)))), this.rows)));
  }

  start() {
    const take = content => {
      if (content.about) this.onAbout(content.about);
      for (const decision of content.decisions) {
        this.#decisions.delete(decision.key);
        this.#decisions.set(decision.key, decision);
      }
      while (this.#decisions.size > 5 * MOST) this.#decisions.delete(this.#decisions.keys().next().value);
      this.#missing = content.missing;
      this.#dirty = true;
    };
    this.stop = follow("api/decisions/stream", {
      whole: content => { this.#decisions.clear(); take(content) },
      changes: take,
    }, this.onState);
    this.timer = setInterval(() => {
      if (this.#dirty && !this.#paused && !document.hidden && !this.rows.contains(document.activeElement)) this.#render();
    }, 500);
  }

  end() {
    this.stop();
    clearInterval(this.timer);
    this.#request?.abort();
  }

  /** Shows the decision on a request, and the filters of the address. */
  show(id, query) {
    for (const [name, input] of Object.entries(this.filters)) if (query.has(name)) input.value = query.get(name);
    this.id.value = id;
    this.#request?.abort();
    this.one.hidden = !id;
    if (id) this.#load(id);
    this.#render();
  }

  async #load(id) {
    const request = this.#request = new AbortController();
    this.one.replaceChildren(note(`Looking for ${id} …`));
    try {
      const { decisions, missing } = await get(`api/decisions/${encodeURIComponent(id)}`, request.signal);
      const unheard = missing.map(text => note(text, "warning"));
      if (!decisions.length) {
        this.one.replaceChildren(note(`No picker has kept a decision on ${id}. Each keeps the last thousand or so, until it ends.`, "warning"), ...unheard);
        return;
      }
      this.one.replaceChildren(...unheard, ...decisions.map(decision => picture(decision)), this.#again(decisions[0]));
    } catch (error) {
      if (!request.signal.aborted) this.one.replaceChildren(note(error.message, "error"));
    }
  }

  // A form that asks what would happen now.
  #again(decision) {
    const body = h("textarea", { id: "again-body", rows: 6, spellcheck: "false" });
    body.value = JSON.stringify({ model: decision.model, messages: [{ role: "user", content: "" }] }, null, 2);
    const headers = h("textarea", { id: "again-headers", rows: 2, spellcheck: "false", placeholder: "name: value" });
    const answer = h("div", { "aria-live": "polite" });
    const send = async event => {
      event.preventDefault();
      const lines = headers.value.split("\n").map(line => line.trim()).filter(Boolean);
      try {
        const { decision: now } = await post("api/explain", {
          picker: decision.picker, path: decision.path, body: body.value,
          headers: lines.map(line => { const at = line.indexOf(":"); return [line.slice(0, at).trim(), line.slice(at + 1).trim()] }),
        });
        answer.replaceChildren(picture(now, "What would be decided now"));
      } catch (error) { answer.replaceChildren(note(error.message, "error")) }
    };
    return h("details", { class: "again" }, h("summary", {}, "Ask again, with another body"),
      h("form", { submit: send },
        h("p", {}, "The picker decides without sending anything to a model server. Pickers don't keep prompts, so the body begins without one."),
        h("label", { for: "again-body" }, "Body"), body, h("label", { for: "again-headers" }, "Headers"), headers,
        h("button", {}, `Ask ${decision.picker}`)), answer);
  }

  #find(event) {
    event.preventDefault();
    location.hash = this.id.value.trim() ? `#/decisions/${encodeURIComponent(this.id.value.trim())}` : "#/decisions";
  }

  #toggle() {
    this.#paused = !this.#paused;
    this.pause.setAttribute("aria-pressed", this.#paused);
    if (!this.#paused) this.#render();
  }

  #render() {
    this.#dirty = false;
    const { model, endpoint, status: code, objective } = this.filters;
    const has = (text, input) => (text ?? "").toLowerCase().includes(input.value.trim().toLowerCase());
    const found = [...this.#decisions.values()].reverse().filter(decision =>
      (has(decision.model, model) || has(decision.target_model, model))
      && (has(decision.endpoint, endpoint) || has(decision.served_endpoint, endpoint))
      && (status(decision).startsWith(code.value.trim()) || has(outcome(decision), code))
      && has(decision.objective, objective));
    setText(this.found, [plural(found.length, "decision"), ...this.#missing].join(" · "));
    const rows = byEndpoint(found), text = JSON.stringify(rows);
    if (text !== this.#compared && !this.summary.contains(document.activeElement)) replace(this.summary, rows.length ? compared(rows) : null);
    this.#compared = text;
    this.rows.replaceChildren(...found.slice(0, MOST).map(row));
  }
}
