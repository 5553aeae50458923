// Elements and texts. Whatever comes from the bus is text: nothing here, or anywhere in the page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

const fill = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return made;
};

/** An HTML element. Functions among the attributes are listeners: `{click: …}`. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Sets a node's text, if it is another one. */
export const setText = (node, text) => {
  if (node.shown !== text) node.textContent = node.shown = text;
};

/** Sets or removes an attribute, if that is a change. */
export const setAttribute = (node, name, value) => {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
};

// A region that isn't in the document any more doesn't know how far it was scrolled.
const remember = ({ currentTarget }) => { currentTarget.at = [currentTarget.scrollTop, currentTarget.scrollLeft] };

/** A table from a heading for each column, and rows of cells. The first cell of a row is its heading. */
export const table = (caption, headings, rows, attributes = {}) =>
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, scroll: remember },
    h("table", attributes,
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, headings.map(heading => h("th", { scope: "col" }, heading)))),
      h("tbody", {}, rows.map(cells =>
        h("tr", {}, cells.map((cell, at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, cell)))))));

/** Replaces a container's content. Regions that are scrolled or focused stay so. */
export const replace = (container, ...children) => {
  const regions = new Map([...container.querySelectorAll("[role=region]")].map(region => [region.getAttribute("aria-label"), region]));
  const focused = document.activeElement;
  container.replaceChildren(...children.flat().filter(child => child !== null && child !== undefined));
  for (const region of container.querySelectorAll("[role=region]")) {
    const before = regions.get(region.getAttribute("aria-label"));
    if (!before) continue;
    [region.scrollTop, region.scrollLeft] = before.at ?? [0, 0];
    region.at = before.at;
    if (before === focused) region.focus({ preventScroll: true });
  }
};

/** A list of names and values. */
export const definitions = pairs =>
  h("dl", {}, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** A message in place of content. */
export const note = (text, kind = "info") => h("p", { class: `note ${kind}` }, text);
