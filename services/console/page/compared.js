// Decisions by endpoint: which server is slow shows beside the others.

import { h, table } from "./dom.js";
import { count, plural, seconds } from "./format.js";

/** Endpoints that are shown; of more, the slowest. */
const MOST = 20;

const median = values => {
  const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** A row for each endpoint that has served these decisions: the slowest first, by the median time of a request there. */
export const byEndpoint = decisions => {
  const found = new Map();
  for (const { served_endpoint, endpoint, duration_seconds: duration, waited_seconds: waited } of decisions) {
    const id = served_endpoint ?? endpoint;
    if (!id) continue;
    if (!found.has(id)) found.set(id, { id, all: 0, durations: [] });
    const one = found.get(id);
    one.all += 1;
    if (duration !== null && duration !== undefined) one.durations.push(Math.max(0, duration - (waited ?? 0)));
  }
  return [...found.values()]
    .map(({ id, all, durations }) => ({ id, all, median: durations.length ? median(durations) : null, longest: durations.length ? Math.max(...durations) : null }))
    .sort((one, other) => (other.median ?? -1) - (one.median ?? -1));
};

/** The table of these rows. */
export const compared = rows => h("div", {},
  table("By endpoint", ["Endpoint", "Decisions", "Median time there", "Longest"], rows.slice(0, MOST).map(({ id, all, median, longest }) => [
    h("a", { href: `#/decisions?endpoint=${encodeURIComponent(id)}` }, id), count(all), seconds(median), seconds(longest)])),
  rows.length > MOST ? h("p", {}, `… and ${plural(rows.length - MOST, "faster one")}`) : null);
