// The running configuration, what each member has made of it, and a check of an edited document.

import { get, post } from "./api.js";
import { difference, shown } from "./difference.js";
import { definitions, h, note, replace, table } from "./dom.js";
import { time } from "./format.js";
import { replayed } from "./replay.js";

const REFRESH = 2000;

const problems = (title, kind, list) => list.length
  ? h("div", { class: `note ${kind}` }, h("p", {}, title), h("ul", {}, list.map(text => h("li", {}, text)))) : null;

export class ConfigurationPage {
  #shown = ""; #text = null; #replaying = null;

  constructor(onState, onAbout) {
    this.onState = onState;
    this.onAbout = onAbout;
    this.running = h("div", {}, note("Loading …"));
    this.draft = h("textarea", { id: "draft", rows: 24, spellcheck: "false" });
    this.answer = h("div", { "aria-live": "polite" });
    this.element = h("div", {}, h("h1", {}, "Configuration"), this.running,
      h("section", { "aria-labelledby": "check" }, h("h2", { id: "check" }, "Try an edited document"),
        h("form", { submit: event => this.#check(event) },
          h("p", {}, "Nothing is published. Check: the console loads the document as the tiers would. Dry run: each picker replays its last decisions with it."),
          h("label", { for: "draft" }, "Document"), this.draft,
          h("button", {}, "Check"), " ",
          this.dryRun = h("button", { type: "button", click: () => this.#replay() }, "Dry run"), " ",
          h("button", { type: "button", click: () => { this.draft.value = this.#text ?? "" } }, "Start from the running one"))),
      this.answer);
  }

  start() {
    const ended = this.ended = new AbortController();
    const refresh = async () => {
      try {
        const content = await get("api/configuration", ended.signal);
        this.onState("live");
        this.onAbout(content.about);
        this.#render(content);
      } catch (error) {
        if (ended.signal.aborted) return;
        this.onState(error.message);
      }
      this.timer = setTimeout(refresh, REFRESH);
    };
    refresh();
  }

  end() {
    this.ended.abort();
    this.#replaying?.abort();
    clearTimeout(this.timer);
  }

  #render(content) {
    const { about: _, ...rest } = content;
    const text = JSON.stringify(rest);
    if (text === this.#shown) return;
    this.#shown = text;
    if (this.#text === null) this.draft.value = content.text;
    this.#text = content.text;
    replace(this.running,
      definitions([["Revision", content.revision], ["Origin", content.origin || "built in"], ["Plugins", String(content.plugins)]]),
      problems("The tiers refuse this document:", "error", content.errors),
      problems("Warnings:", "warning", content.warnings),
      content.rejected.length
        ? table("Refused last", ["Member", "Why"], content.rejected.map(({ tier, id, reason }) => [`${tier} ${id}`, reason]))
        : note("No member has refused a later document."),
      table("What each member runs", ["Member", "Revision", "Origin", "Warnings"], content.members.map(member => [
        `${member.tier} ${member.id}`,
        h("span", {}, member.revision || "unknown", member.revision && member.revision !== content.revision ? h("span", { class: "tag warning" }, "another one") : null),
        member.origin, member.warnings.length ? h("ul", { class: "problems" }, member.warnings.map(warning => h("li", {}, warning))) : "none"])),
      ...this.#change(content),
      h("h2", {}, "Document"),
      h("pre", { tabindex: 0, role: "region", "aria-label": "Running document" }, content.text || "(the built-in one)"));
  }

  // What the last change did, as far as this console has seen one.
  #change({ before, text }) {
    if (!before) return [];
    return [h("h2", {}, "The last change"),
      h("p", {}, `Revision ${before.revision} ran until ${time(before.until)}. `,
        h("button", { type: "button", click: () => { this.draft.value = before.text; this.#replay() } }, "Try the former document"),
        " It's a dry run: which of the last decisions it would have sent elsewhere."),
      shown(difference(before.text, text))];
  }

  async #replay() {
    const replaying = this.#replaying = new AbortController();
    this.dryRun.disabled = true;
    this.answer.scrollIntoView({ block: "nearest" });
    this.answer.replaceChildren(note("The pickers replay their last decisions …"));
    try {
      const text = this.draft.value;
      const page = await post("api/configuration/replay", { text }, replaying.signal);
      this.answer.replaceChildren(
        problems("The tiers would refuse it:", "error", page.errors) ?? "", ...(page.errors.length ? [] : replayed(page)),
        problems("Warnings:", "warning", page.warnings) ?? "", problems("No answer from:", "warning", page.missing) ?? "");
    } catch (error) {
      if (!replaying.signal.aborted) this.answer.replaceChildren(note(error.message, "error"));
    } finally { this.dryRun.disabled = false }
  }

  async #check(event) {
    event.preventDefault();
    try {
      const { revision, errors, warnings, plugins } = await post("api/configuration/check", { text: this.draft.value });
      this.answer.replaceChildren(
        problems("The tiers would refuse it:", "error", errors) ?? note(`It loads: revision ${revision}, ${plugins} plugins.`, "good"),
        problems("Warnings:", "warning", warnings) ?? "");
    } catch (error) { this.answer.replaceChildren(note(error.message, "error")) }
  }
}
