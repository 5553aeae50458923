// Flow control: what waits and runs in each band and flow, over all pickers.

import { follow } from "./api.js";
import { h, note, table } from "./dom.js";
import { count, number, seconds } from "./format.js";

const BANDS = ["Priority", "Queued", "Tokens queued", "Longest wait", "Running", "Leave the queue", "Flows", "By picker"];
const FLOWS = ["Flow", "Priority", "Queued", "Tokens queued", "Longest wait", "Running", "Leave the queue", "Tokens served"];

const rate = value => value === null ? "measuring" : `${number(value, 1)}/s`;

const band = entry => [String(entry.priority), count(entry.requests), count(entry.tokens), seconds(entry.longest_wait), count(entry.running),
  rate(entry.rate), count(entry.flows), Object.entries(entry.pickers).map(([id, waiting]) => `${id}: ${waiting}`).join(", ")];

const flow = entry => [entry.flow || "all others", String(entry.priority), count(entry.requests), count(entry.tokens), seconds(entry.longest_wait),
  count(entry.running), rate(entry.rate), count(entry.served_tokens)];

export class FlowPage {
  constructor(onState, onAbout) {
    this.onState = onState;
    this.onAbout = onAbout;
    this.content = h("div", {}, note("Waiting for the pickers …"));
    this.element = h("div", {}, h("h1", {}, "Flow control"), this.content);
  }

  start() {
    const take = content => {
      if (content.about) this.onAbout(content.about);
      if (!this.content.contains(document.activeElement)) this.#render(content);
    };
    this.stop = follow("api/flow/stream", { whole: take, changes: take }, this.onState);
  }

  end() { this.stop() }

  #render({ pickers, bands, flows, more_flows: more }) {
    if (!pickers.length) {
      this.content.replaceChildren(note("No picker has flow control, or none is heard. The feature gate flowControl turns it on."));
      return;
    }
    this.content.replaceChildren(
      h("p", {}, `Pickers with flow control: ${pickers.join(", ")}.`),
      bands.length ? table("Priority bands, the most important first", BANDS, bands.map(band)) : note("Nothing waits and nothing runs."),
      flows.length ? table("Flows with the most requests; each goes by a hash of its id", FLOWS, flows.map(flow)) : "",
      more ? note(`… and ${more} more flows`) : "");
  }
}
