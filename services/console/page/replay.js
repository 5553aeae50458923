// What a dry run of an edited document has come to.

import { definitions, h, note, table } from "./dom.js";
import { plural } from "./format.js";

const link = id => h("a", { href: `#/decisions/${encodeURIComponent(id)}` }, id);
const links = ids => h("span", {}, ids.flatMap((id, at) => at ? [", ", link(id)] : [link(id)]));
const endpoint = id => id || "refused: no endpoint is left";
const counted = counts => Object.entries(counts).map(([what, count]) => `${count} ${what}`).join(", ") || "none";

/** Elements that show a page of `POST /api/configuration/replay`. */
export const replayed = page => {
  if (!page.replayed) {
    const why = page.decisions ? `none of the last ${plural(page.decisions, "decision")} can be replayed (${counted(page.skipped)})`
      : page.pickers.length ? "no picker keeps a decision" : "no picker has answered";
    return [note(`Nothing to replay: ${why}.`, "warning")];
  }
  const { fidelity } = page;
  return [
    note(`${page.elsewhere} of the last ${plural(page.replayed, "decision")} would have gone elsewhere.`, page.elsewhere ? "info" : "good"),
    definitions([
      ["Pickers", String(page.pickers.length)],
      ["Not replayed", counted(page.skipped)],
      ["Differ by chance only", `${page.by_chance}: several endpoints are equally good`],
      ["Replayed with the running document", `${fidelity.elsewhere} of ${fidelity.replayed} elsewhere, because inputs are missing`],
      ["Failed plugins", counted(page.failures)],
    ]),
    page.moves.length ? table("Where they would have gone", ["From", "To", "Decisions", "For example"], page.moves.map(move =>
      [endpoint(move.chosen), endpoint(move.instead), String(move.decisions), links(move.examples)])) : null,
    page.more_moves ? note(`${plural(page.more_moves, "further pair")} of endpoints aren't listed.`) : null,
    page.gaps.length ? table("Inputs that pickers haven't kept", ["Input", "Used instead", "Decisions"], page.gaps.map(gap =>
      [gap.input, gap.used === "current" ? "its current value" : "nothing", String(gap.decisions)])) : null,
  ].filter(Boolean);
};
