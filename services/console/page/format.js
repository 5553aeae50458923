// Numbers as people read them. A value that nobody has reported is a dash.

export const NONE = "–";

const known = value => value !== null && value !== undefined && Number.isFinite(value);

export const count = value => !known(value) ? NONE
  : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(1)} k`
  : Number.isInteger(value) ? String(value) : value.toFixed(1);

export const percent = value => known(value) ? `${Math.round(value * 100)} %` : NONE;

export const seconds = value => !known(value) ? NONE : value === 0 ? "0 s"
  : value < 0.0995 ? `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms` : value < 0.9995 ? `${Math.round(value * 1000)} ms`
  : value < 99.5 ? `${value.toFixed(1)} s` : value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;

export const number = (value, digits = 3) => known(value) ? Number(value.toFixed(digits)).toString() : NONE;

/** A time of day with milliseconds, in the browser's zone. */
export const time = iso => {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso
    : `${at.toLocaleTimeString([], { hour12: false })}.${String(at.getMilliseconds()).padStart(3, "0")}`;
};

export const plural = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
