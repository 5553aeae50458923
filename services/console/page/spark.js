// Lines of the last ten minutes. They are pictures with a description, so nobody needs to see them.

import { s, setAttribute } from "./dom.js";
import { SAMPLES, STEP } from "./model.js";

const WIDTH = 120, HEIGHT = 28;

/** The path of a series, 0 at the bottom; gaps where nothing is known. */
const line = (series, most) => {
  let path = "", pen = "M";
  series.forEach((value, at) => {
    if (Number.isNaN(value)) { pen = "M"; return }
    const x = (at / (SAMPLES - 1) * WIDTH).toFixed(1), y = (HEIGHT - 1 - value / most * (HEIGHT - 3)).toFixed(1);
    path += `${pen}${x} ${y}`;
    pen = "L";
  });
  return path;
};

export const sparkline = () => s("svg",
  { class: "line", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
  s("path", { "vector-effect": "non-scaling-stroke" }));

const largest = series => series.reduce((most, value) => value > most ? value : most, 0);

/** Shows a series in a sparkline; `least` is the least value at the top. */
export const draw = (svg, series, { name, least = 1, format = String }) => {
  const most = largest(series), last = series[SAMPLES - 1];
  setAttribute(svg.firstChild, "d", line(series, Math.max(most, least)));
  setAttribute(svg, "aria-label",
    `${name}, last ${SAMPLES * STEP / 60} minutes: now ${Number.isNaN(last) ? "unknown" : format(last)}, at most ${format(most)}`);
};
