"use strict";
// Charts that answer to keys: what is selected is said below the chart, and shown as on hovering.
const keyboard = (() => {
  const { byId, repaints } = page;
  const EDGE = 4;

  // keys(key, at) returns the number of what is selected then, null for nothing, undefined for a
  // key that is not the chart's; text(at) says what that is, point(at) where to show it.
  const add = (id, { keys, text, point }) => {
    const element = byId(id), said = byId(`${id}-said`);
    if (!element) return;
    let at = null;
    const show = () => {
      const chart = charts.of(id), to = (type, more) => chart.dispatchAction({ type, seriesIndex: 0, ...more });
      to("downplay");
      to("hideTip");
      said.textContent = at === null ? "" : text(at);
      if (at === null) return;
      to("highlight", { dataIndex: at });
      const [x, y] = point(at);
      to("showTip", { dataIndex: at, position: (_, __, tip, ___, { contentSize: [wide, tall], viewSize: [width, height] }) => [
        Math.max(EDGE, Math.min(x + EDGE, width - wide - EDGE)), Math.max(EDGE, Math.min(y + EDGE, height - tall - EDGE)),
      ] });
    };
    const select = (next) => { at = next; show(); };
    // A click does not focus it, so that the arrow keys still scroll the page afterwards.
    element.addEventListener("mousedown", (event) => event.preventDefault());
    element.addEventListener("focus", () => select(keys("Home", at)));
    element.addEventListener("blur", () => select(null));
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const next = keys(event.key, at);
      if (next === undefined) return;
      event.preventDefault();
      select(next);
    });
    repaints.push(() => { if (document.activeElement === element) select(keys("Home", null)); });
  };
  const limited = (value, end) => Math.min(end - 1, Math.max(0, value));

  return { add, limited };
})();
