// Where two texts differ: the lines between what is the same at their beginnings and at their ends.

import { h } from "./dom.js";

/** The lines that `after` has in place of those of `before`, with two of context around them. */
export const difference = (before, after) => {
  const old = before.split("\n"), now = after.split("\n");
  let start = 0, end = 0;
  const shorter = Math.min(old.length, now.length);
  while (start < shorter && old[start] === now[start]) start++;
  while (end < shorter - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end++;
  const context = (from, to) => now.slice(Math.max(0, from), Math.max(0, to)).map(line => `  ${line}`);
  return [
    ...context(start - 2, start),
    ...old.slice(start, old.length - end).map(line => `- ${line}`),
    ...now.slice(start, now.length - end).map(line => `+ ${line}`),
    ...context(now.length - end, now.length - end + 2),
  ];
};

/** These lines, to be read. */
export const shown = lines => h("pre", { tabindex: 0, role: "region", "aria-label": "What the last change did" }, lines.map(line =>
  h("span", { class: line.startsWith("-") ? "removed" : line.startsWith("+") ? "added" : null }, `${line}\n`)));
