// The processes of each tier: who leads, how old their copies are, and whether they agree.

import { h, replace, table } from "./dom.js";
import { count, seconds } from "./format.js";

const TIERS = { watcher: "Watchers", collector: "Collectors", picker: "Pickers" };
const MOST = 200;

const health = member => h("span", { class: "badge", "data-state": member.ready ? "up" : member.ready === null ? "unknown" : "down" },
  member.ready ? "ready" : member.ready === null ? "no answer" : "not ready");

const agreement = member => member.agrees === null ? "unknown" : member.agrees ? "agrees" : `differs for ${seconds(member.differs_for)}`;

const row = member => [
  h("span", {}, member.id, member.leads ? h("span", { class: "tag" }, "leader") : null),
  health(member), member.version, seconds(member.uptime), seconds(member.facts_age), agreement(member), member.digest,
  member.work, seconds(member.longest_pause),
  member.problems.length ? h("ul", { class: "problems" }, member.problems.map(problem => h("li", {}, problem))) : "none",
];

const HEADINGS = ["Member", "State", "Version", "Uptime", "Facts heard", "Facts", "Digest", "Work", "Longest pause", "Problems"];

export class Members {
  #shown = "";
  element = h("section", { "aria-labelledby": "members" });

  /** Shows these members and what is wrong with them together, if that is something else than before. */
  render(members, problems) {
    const text = JSON.stringify([members, problems]);
    if (text === this.#shown) return;
    this.#shown = text;
    const tiers = Object.entries(TIERS).map(([tier, title]) => {
      const found = members.filter(member => member.tier === tier);
      const rest = found.length > MOST ? h("p", {}, `… and ${count(found.length - MOST)} more`) : null;
      return found.length ? h("div", {}, table(title, HEADINGS, found.slice(0, MOST).map(row), { class: "members" }), rest)
        : h("p", { class: "note" }, `${title}: none heard`);
    });
    replace(this.element, h("h2", { id: "members" }, "Members"),
      problems.length ? h("div", { class: "note warning" }, h("ul", { class: "problems" }, problems.map(problem => h("li", {}, problem)))) : null, ...tiers);
  }
}
