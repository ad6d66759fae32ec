"use strict";
// The findings: filtered, searched, sorted; the first of many, more on request.
(() => {
  const { data, byId, t, redraws, speak, many, button } = page;
  const find = byId("find");
  if (!find) return;
  const MOST = 50;
  const section = byId("findings");
  let rows = [...section.querySelectorAll(".finding")];
  // Those behind the first are text of a <noscript>: a thousand take a second, and are made when asked for.
  const whole = () => {
    const others = byId("others");
    if (!others) return;
    others.outerHTML = others.textContent;
    rows = [...section.querySelectorAll(".finding")];
    speak(section);
    for (const redraw of redraws) redraw();
  };
  const said = (row) => [...row.querySelectorAll(".t")].map((part) => `${part.dataset.en} ${part.dataset.zh}`);
  const texts = { made: new Map(), get(row) { return this.made.get(row) ?? this.made.set(row, [row.textContent, ...said(row)].join("\n").toLowerCase()).get(row); } };
  const more = byId("more"), none = byId("none");
  const groups = [...section.querySelectorAll("button[data-group]")], sorts = [...section.querySelectorAll("[data-sort]")];
  let most = MOST, group = "", key = "";

  const draw = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = most, hidden = byId("others") ? data.findings.length - rows.length : 0, shown = 0;
    const ordered = key ? [...rows].sort((a, b) => b.dataset[key] - a.dataset[key]) : rows;
    for (const row of ordered) {
      const wanted = (!group || row.dataset.group === group) && (!words.length || words.every((word) => texts.get(row).includes(word)));
      row.hidden = !wanted || left-- <= 0;
      hidden += wanted && row.hidden;
      shown += wanted;
    }
    none.hidden = shown > 0;
    const label = t("show {count} more", { count: many(hidden) });
    more.replaceChildren(...(hidden ? [button(label, () => { most = Infinity; whole(); draw(); })] : []));
    for (const one of groups) one.setAttribute("aria-pressed", String(one.dataset.group === group));
    return ordered;
  };
  const all = () => { whole(); find.value = ""; group = ""; most = Infinity; draw(); };
  const show = () => {
    if (!location.hash.startsWith("#finding-")) return;
    if (!byId(location.hash.slice(1))) whole();
    const row = byId(location.hash.slice(1));
    if (!row) return;
    if (row.hidden) all();
    row.open = true;
  };
  find.addEventListener("input", () => { whole(); draw(); });
  for (const one of groups) one.addEventListener("click", () => { whole(); group = one.dataset.group; draw(); });
  for (const one of sorts) one.addEventListener("click", () => {
    whole();
    key = one.dataset.sort;
    for (const other of sorts) other.setAttribute("aria-pressed", String(other === one));
    none.before(...draw());
  });
  byId("clear").addEventListener("click", all);
  addEventListener("hashchange", show);
  addEventListener("beforeprint", () => { whole(); most = Infinity; draw(); });
  draw();
  show();
  redraws.push(draw);
})();
