// Flow control: what waits and runs in each band and flow, over all pickers.

import { follow } from "./api.js";
import { h, note, replace, table } from "./dom.js";
import { count, number, seconds } from "./format.js";

const BANDS = ["Priority", "Queued", "Tokens queued", "Longest wait", "Running", "Leave the queue", "Flows"];
const FLOWS = ["Flow", "Priority", "Queued", "Tokens queued", "Longest wait", "Running"];

const band = entry => [String(entry.priority), count(entry.requests), count(entry.tokens), seconds(entry.longest_wait), count(entry.running),
  `${number(entry.rate, 1)}/s`, count(entry.flows)];

const flow = entry => [entry.name || entry.flow || "all others", String(entry.priority), count(entry.requests), count(entry.tokens), seconds(entry.longest_wait),
  count(entry.running)];

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
      this.#render(content);
    };
    this.stop = follow("api/flow/stream", { whole: take, changes: take }, this.onState);
  }

  end() { this.stop() }

  #render({ pickers, bands, flows, more_flows: more }) {
    const ids = Object.keys(pickers);
    if (!ids.length) {
      replace(this.content, note("No picker has flow control, or none is heard. The feature gate flowControl turns it on."));
      return;
    }
    replace(this.content,
      h("p", {}, `Waiting at each picker with flow control: ${ids.map(id => `${id} ${pickers[id]}`).join(", ")}.`),
      bands.length ? table("Priority bands, the most important first", BANDS, bands.map(band)) : note("Nothing waits and nothing runs."),
      flows.length ? table("Flows with the most requests; one without a decision of late goes by a hash of its id", FLOWS, flows.map(flow)) : null,
      more ? note(`… and ${more} more flows`) : null);
  }
}
