"use strict";
// The page of a diagnosis: its findings, and the hottest operators.
(() => {
  const { data, byId, t, redraws, time, many, percent, printable, cut, html, button, color, go, named } = page;
  const { base, axis, tones } = charts;

  // --- findings: the most rewarding first, more on request --------------------------------------
  const CARDS = 50;
  const find = byId("find");
  if (find) {
    const cards = [...document.querySelectorAll(".card")];
    const said = (card) => [...card.querySelectorAll(".t")].map((part) => `${part.dataset.en} ${part.dataset.zh}`);
    const texts = cards.map((card) => [card.textContent, ...said(card)].join("\n").toLowerCase());
    const more = byId("more");
    let most = CARDS;
    const draw = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = most, hidden = 0;
      cards.forEach((card, i) => {
        const wanted = words.every((word) => texts[i].includes(word));
        card.hidden = !wanted || left-- <= 0;
        hidden += wanted && card.hidden;
      });
      const label = t("show {count} more", { count: many(hidden) });
      more.replaceChildren(...(hidden ? [button(label, () => { most = Infinity; draw(); })] : []));
    };
    const show = () => {
      const card = location.hash.startsWith("#finding-") && byId(location.hash.slice(1));
      if (card && card.hidden) { find.value = ""; most = Infinity; draw(); card.scrollIntoView(); }
    };
    find.addEventListener("input", draw);
    addEventListener("hashchange", show);
    addEventListener("beforeprint", () => { most = Infinity; draw(); });
    draw();
    show();
    redraws.push(draw);
  }

  const pareto = () => {
    const rows = data.tables.operators.slice(0, innerWidth < 640 ? 10 : 24);
    let sum = 0;
    const along = rows.map((row) => (sum += row[8]));
    const marks = rows.map((row) => data.marked[row[0]] || []);
    return {
      ...base(),
      grid: { left: 64, right: 56, top: 24, bottom: 110 },
      tooltip: { ...base().tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter: ([item]) => {
        const row = rows[item.dataIndex];
        const found = marks[item.dataIndex].slice(0, 5).map((n) => `<br>● ${html(named(n))}`).join("");
        return `<b>${html(row[0])}</b> ${html(row[1])}<br>${time(row[3])} ${many(row[2])} ${t("calls")}, ${percent(row[8])}<br>${html(row[10])}${found}`;
      } },
      xAxis: { ...axis(), type: "category", data: rows.map((row, i) => `${marks[i].length ? "● " : ""}${printable(row[0])}`), axisLabel: { color: color("--dim"), rotate: 45, formatter: (text) => cut(text, 20), interval: 0 } },
      yAxis: [
        { ...axis(), type: "value", axisLabel: { color: color("--dim"), formatter: time } },
        { ...axis(), type: "value", max: 1, splitLine: { show: false }, axisLabel: { color: color("--dim"), formatter: (x) => `${Math.round(100 * x)}%` } },
      ],
      series: [
        { type: "bar", data: rows.map((row, i) => ({ value: row[3], itemStyle: marks[i].length ? { color: tones()[2] } : {} })), cursor: "pointer" },
        { type: "line", yAxisIndex: 1, data: along, symbol: "none", lineStyle: { type: "dashed" }, itemStyle: { color: tones()[6] } },
      ],
      clicked: ({ dataIndex }) => marks[dataIndex].length && go(marks[dataIndex][0]),
    };
  };

  charts.add({ pareto });
})();
