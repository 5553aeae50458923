// The frame around the pages: which one is shown, the theme, the state of the connection, the token.

import { onTokenNeeded } from "./api.js";
import { ConfigurationPage } from "./configuration.js";
import { DecisionsPage } from "./decisions.js";
import { h, setAttribute, setText } from "./dom.js";
import { FlowPage } from "./flow.js";
import { PoolPage } from "./pool.js";

const PAGES = { pool: PoolPage, decisions: DecisionsPage, flow: FlowPage, configuration: ConfigurationPage };
const TITLES = { pool: "Pool", decisions: "Decisions", flow: "Flow control", configuration: "Configuration" };
const THEMES = ["system", "light", "dark"];
const THEME = "pointsman-theme";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const theme = document.getElementById("theme");
let about = { problem: "" }, state = "connecting", shown = null, page = null;

const showState = () => {
  const problem = state === "live" ? about.problem : state;
  setText(connection, problem || "live");
  setAttribute(connection, "data-state", problem ? problem === "connecting" ? "unknown" : "down" : "up");
};

const onState = now => { state = now; showState() };
const onAbout = now => {
  about = now;
  setText(document.getElementById("pool-name"), now.name ? `${now.namespace}/${now.name}` : "");
  showState();
};

/** Text that is no percent-encoding is taken as it is. */
const decoded = text => { try { return decodeURIComponent(text) } catch { return text } };

/** `#/decisions/ID?endpoint=…` as the page's name, the rest of the path, and the query. */
const route = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: Object.hasOwn(PAGES, name) ? name : "pool", rest: decoded(rest.join("/")), query: new URLSearchParams(query) };
};

const navigate = () => {
  const { name, rest, query } = route();
  document.title = `${TITLES[name]} – Pointsman`;
  for (const link of document.querySelectorAll("nav a")) setAttribute(link, "aria-current", link.hash === `#/${name}` && "page");
  if (name !== shown) {
    page?.end();
    onState("connecting");
    const first = shown === null;
    shown = name;
    page = new PAGES[name](onState, onAbout);
    main.replaceChildren(page.element);
    page.start();
    if (!first) main.focus({ preventScroll: true });
  }
  page.show?.(rest, query);
};

const applyTheme = () => {
  const chosen = localStorage.getItem(THEME) ?? "system";
  setAttribute(document.documentElement, "data-theme", chosen);
  setText(theme, `Theme: ${chosen}`);
};

theme.addEventListener("click", () => {
  const chosen = localStorage.getItem(THEME) ?? "system";
  localStorage.setItem(THEME, THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  applyTheme();
});

onTokenNeeded(() => new Promise(resolve => {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const dialog = h("dialog", { "aria-labelledby": "token-title" },
    h("form", { method: "dialog" }, h("h2", { id: "token-title" }, "This console asks for a token"),
      h("label", { for: "token" }, "Token"), input, h("button", {}, "Continue")));
  dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(input.value);
  });
  document.body.append(dialog);
  dialog.showModal();
}));

addEventListener("hashchange", navigate);
applyTheme();
navigate();
