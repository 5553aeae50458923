// One decision as a picture: candidates, filters, stacked weighted scores, the choice, and how old its inputs were.

import { definitions, h, note, table } from "./dom.js";
import { count, number, seconds, time } from "./format.js";

/** Endpoints that a picture shows; all are in the table of scores. */
const SHOWN = 12;
const COLOURS = 8;

const step = (title, left, detail) => h("li", {}, h("strong", {}, title), h("span", { class: "left" }, left), detail);

const funnel = (decision, profile) => h("ol", { class: "funnel" },
  step("Candidates", String(decision.candidates.length), null),
  profile.filters.map(filter => step(filter.plugin, String(filter.kept),
    filter.removed.length ? h("details", {}, h("summary", {}, `removed ${filter.removed.length}`), h("p", {}, filter.removed.join(", "))) : h("span", {}, "removed none"))),
  step(profile.picker || "picker", String(profile.picked.length), h("span", {}, profile.picked.length ? `chose ${profile.picked[0]}` : "chose none")));

/** [id, total, [[plugin, weighted]]] of each endpoint, the best first. */
const ranked = profile => Object.entries(profile.endpoints)
  .map(([id, { total, scores }]) => [id, total, Object.entries(scores).map(([plugin, { weighted }]) => [plugin, weighted ?? 0])])
  .sort(([one, a], [other, b]) =>
    (profile.picked.indexOf(other) === 0) - (profile.picked.indexOf(one) === 0) || (b ?? -Infinity) - (a ?? -Infinity));

const bars = profile => {
  const all = ranked(profile), most = Math.max(...all.map(([, total]) => total ?? 0), 1e-9);
  const plugins = [...new Set(all.flatMap(([, , scores]) => scores.map(([plugin]) => plugin)))];
  const colour = plugin => plugins.indexOf(plugin) % COLOURS;
  const bar = ([id, total, scores], rank) => {
    const role = profile.picked[0] === id ? "chosen" : rank === 1 ? "runner-up" : "";
    const parts = scores.filter(([, weighted]) => weighted > 0).map(([plugin, weighted]) => {
      const part = h("span", { class: `part colour-${colour(plugin)}`, title: `${plugin}: ${number(weighted)}` });
      part.style.width = `${weighted / most * 100}%`;
      return part;
    });
    return h("li", { class: role },
      h("span", { class: "who" }, id, role ? h("span", { class: "tag" }, role) : null,
        profile.ranked_last[id] ? h("span", { class: "tag warning" }, `last: ${profile.ranked_last[id]}`) : null),
      h("span", { class: "stack", "aria-hidden": "true" }, parts), h("span", { class: "total" }, number(total)));
  };
  return h("div", { class: "scores" },
    h("ul", { class: "legend" }, plugins.map(plugin => h("li", {}, h("span", { class: `swatch colour-${colour(plugin)}`, "aria-hidden": "true" }), plugin))),
    h("ol", { class: "bars" }, all.slice(0, SHOWN).map(bar)),
    all.length > SHOWN ? h("p", {}, `… and ${all.length - SHOWN} more in the table`) : null);
};

const scores = profile => {
  const all = ranked(profile), plugins = [...new Set(all.flatMap(([id]) => Object.keys(profile.endpoints[id].scores)))];
  return h("details", {}, h("summary", {}, "Scores as a table"), table("Score × weight = weighted", ["Endpoint", "Total", ...plugins],
    all.map(([id, total]) => [id, number(total, 9), ...plugins.map(plugin => {
      const { score, weight, weighted } = profile.endpoints[id].scores[plugin] ?? {};
      return `${number(score, 9)} × ${number(weight)} = ${number(weighted, 9)}`;
    })]), { class: "exact" }));
};

const inputs = decision => {
  const rows = Object.entries(decision.inputs).flatMap(([name, endpoints]) =>
    Object.entries(endpoints).map(([id, { value, age, fresh }]) => [id, name, number(value), seconds(age), fresh ? "fresh" : "stale or unknown"]));
  return rows.length ? h("details", {}, h("summary", {}, "Inputs and their ages"),
    table("Values that plugins read", ["Endpoint", "Attribute", "Value", "Age", "State"], rows)) : null;
};

/** A decision, as `/debug/decisions` of its picker has it. */
export const picture = (decision, title = `Request ${decision.request_id}`) => {
  const refused = decision.refused;
  const queue = decision.queue;
  return h("article", { class: "decision" },
    h("h2", {}, title),
    refused ? note(`Refused with ${refused.status}: ${refused.message} (${refused.reason})`, "error") : null,
    h("ul", { class: "why" }, (decision.why ?? []).map(reason => h("li", {}, reason))),
    definitions([
      ["Time", time(decision.at)], ["State", decision.state], ["Picker", decision.picker ?? ""],
      ["Model", decision.target_model && decision.target_model !== decision.model ? `${decision.model} → ${decision.target_model}` : decision.model],
      ["Endpoint", decision.endpoint || "none"], ["Served by", decision.served_endpoint ? `${decision.served_endpoint} (${decision.served_by})` : "unknown"],
      ["Status", String(decision.status ?? "unknown")], ["Objective", decision.objective || "none"], ["Priority", String(decision.priority)],
      ["Body", `${count(decision.body_bytes)} bytes, of which the prompt has ${count(decision.prompt_bytes)}`],
      ["Waited", queue ? `${seconds(queue.seconds)} in band ${queue.band}, behind ${queue.ahead}; ${queue.released_by}` : seconds(decision.waited_seconds)],
      ["Decided in", seconds(decision.microseconds / 1e6)], ["Saturation", number(decision.saturation)],
      ["Charged tokens", count(decision.charged_tokens)], ["Configuration", decision.configuration],
    ]),
    Object.entries(decision.profiles).map(([name, profile]) => h("section", { "aria-label": `Profile ${name}` },
      h("h3", {}, `Profile ${name}${name === decision.primary_profile ? ", which decides" : ""}`),
      funnel(decision, profile), bars(profile), scores(profile))),
    decision.changes?.length
      ? h("details", { open: true }, h("summary", {}, "What would have changed the outcome"), h("ul", {}, decision.changes.map(change => h("li", {}, change.text))))
      : null,
    inputs(decision),
    (decision.left_out ?? []).map(text => note(text, "warning")),
    (decision.plugin_failures ?? []).map(failure => note(Object.values(failure).join(": "), "warning")));
};
