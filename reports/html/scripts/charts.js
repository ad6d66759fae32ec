"use strict";
// Charts: drawn when they come into view, and anew when the theme or the language changes.
const charts = (() => {
  const { byId, color, dark, repaints } = page;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const tones = () => dark()
    ? ["#4c8dd6", "#3f9c8f", "#b98a2f", "#a371d1", "#c46a8d", "#6f9a3e", "#8b94a0"]
    : ["#2f6db5", "#21776b", "#96690d", "#7c4bb3", "#a3426b", "#4d7320", "#5c6672"];
  const ink = () => (dark() ? "#0d1117" : "#fff"); // of texts on the tones
  const base = () => ({
    animation: !still,
    textStyle: { color: color("--fg"), fontFamily: "system-ui, sans-serif" },
    color: tones(),
    tooltip: { confine: true, backgroundColor: color("--card"), borderColor: color("--line"), textStyle: { color: color("--fg") }, extraCssText: "max-width: 90%; white-space: normal; overflow-wrap: anywhere;" },
  });
  const axis = () => ({ axisLine: { lineStyle: { color: color("--line") } }, axisLabel: { color: color("--dim") }, splitLine: { lineStyle: { color: color("--line") } } });
  const legend = () => ({ textStyle: { color: color("--fg") }, top: 0, left: 0, itemGap: 18 });

  const options = {};
  const made = new Map();
  const make = (id) => {
    const { clicked, ...wanted } = options[id]();
    made.get(id)?.dispose();
    const chart = echarts.init(byId(id), null, { renderer: "svg" });
    chart.setOption(wanted);
    if (clicked) chart.on("click", clicked);
    made.set(id, chart);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !made.has(entry.target.id)) make(entry.target.id);
    }
  }, { rootMargin: "300px" });
  const add = (drawn) => {
    for (const [id, option] of Object.entries(drawn)) {
      const element = byId(id);
      if (!element) continue;
      options[id] = option;
      element.style.display = "block";
      seen.observe(element);
    }
  };
  const of = (id) => { if (!made.has(id)) make(id); return made.get(id); };
  const drawAll = () => { for (const id of Object.keys(options)) if (!made.has(id)) make(id); };
  repaints.push(() => { for (const id of [...made.keys()]) make(id); });
  addEventListener("resize", () => { for (const chart of made.values()) chart.resize(); });
  return { add, of, drawAll, base, axis, legend, tones, ink };
})();
