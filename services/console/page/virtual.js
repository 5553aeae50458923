// A long list of which only the visible part exists. An element stays with its item, so focus does, too.

const OVERSCAN = 4;

export class Virtual {
  #elements = new Map();
  #spacers;

  /**
   * `scroller` scrolls `body`, whose first and last child take the room of what isn't there. `make` creates an element,
   * `bind(element, item, index)` shows an item in it. Items have a `slot`. `perRow` and `rowHeight` are functions.
   */
  constructor({ scroller, body, spacers, make, bind, perRow, rowHeight }) {
    Object.assign(this, { scroller, body, make, bind, perRow, rowHeight });
    this.#spacers = spacers;
    this.items = [];
  }

  /** Shows what is in view, and returns those items. */
  render() {
    const { items, body, scroller } = this;
    const perRow = this.perRow(), height = this.rowHeight();
    const rows = Math.ceil(items.length / perRow);
    const first = Math.max(0, Math.min(Math.floor(scroller.scrollTop / height) - OVERSCAN, rows - 1));
    const last = Math.min(rows, Math.ceil((scroller.scrollTop + scroller.clientHeight) / height) + OVERSCAN);
    const start = first * perRow, visible = items.slice(start, last * perRow);
    const [above, below] = this.#spacers;
    above.style.height = `${first * height}px`;
    below.style.height = `${Math.max(0, rows - last) * height}px`;

    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const wanted = new Set(visible.map(item => item.slot));
    const free = [], shown = this.#elements;
    for (const [slot, element] of shown) {
      if (wanted.has(slot)) continue;
      shown.delete(slot);
      free.push(element);
    }
    if (focused && free.some(element => element.contains(focused))) scroller.focus({ preventScroll: true });
    let next = above.nextSibling;
    visible.forEach((item, at) => {
      let element = shown.get(item.slot);
      if (!element) shown.set(item.slot, element = free.pop() ?? this.make());
      this.bind(element, item, start + at);
      if (element === next) next = next.nextSibling;
      else body.insertBefore(element, next);
    });
    for (const element of free) element.remove();
    if (focused?.isConnected && document.activeElement !== focused && document.activeElement === document.body) {
      focused.focus({ preventScroll: true });
    }
    return visible;
  }

  /** Scrolls so far that the item at this index is visible. */
  reveal(index) {
    const { scroller } = this;
    const top = Math.floor(index / this.perRow()) * this.rowHeight();
    const room = scroller.clientHeight - 2 * this.rowHeight();
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
    this.render();
  }

  element(item) { return this.#elements.get(item.slot) }
}
