"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  root.classList.add("scripts");

  // What the page says, in the language that it is in now.
  const t = (text, values = {}) => {
    const said = root.lang === "zh" ? data.words[text] || text : text;
    return said.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  };
  const redraws = [];

  // The same figures as the program prints: three significant digits, us below 0.1 ms.
  const short = (x) => String(Number(x.toPrecision(3)));
  const time = (ns) => {
    if (Math.abs(ns) < 99950) return `${short(ns / 1e3)} us`;
    const ms = ns / 1e6;
    return ms >= 100 ? `${Math.round(ms).toLocaleString("en-US")} ms` : `${short(ms)} ms`;
  };
  const FORMATS = {
    ns: time,
    share: (x) => `${(100 * x).toFixed(1)}%`,
    count: (x) => x.toLocaleString("en-US"),
    text: (x) => String(x),
  };
  const printable = (text) => String(text).replace(/[\p{Cc}\p{Cf}]/gu, "?");
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const html = (text) => { const e = document.createElement("i"); e.textContent = printable(text); return e.innerHTML; };

  // --- tables: sorted, searched and turned page by page ---------------------------------------
  const PAGE = 100;
  for (const [name, rows] of Object.entries(data.tables)) {
    const table = byId(`t-${name}`);
    if (!table) continue;
    const kinds = table.dataset.kinds.split(",");
    const body = table.tBodies[0];
    const pager = document.querySelector(`[data-pager="${name}"]`);
    const texts = rows.map((row) => row.filter((_, i) => kinds[i] === "text").join("\n").toLowerCase());
    const order = [...rows.keys()];
    let words = [], page = 0, sorted = -1, up = false;

    const draw = () => {
      const shown = order.filter((index) => words.every((word) => texts[index].includes(word)));
      const pages = Math.max(1, Math.ceil(shown.length / PAGE));
      page = Math.min(page, pages - 1);
      body.replaceChildren(...shown.slice(page * PAGE, (page + 1) * PAGE).map((index) => {
        const line = document.createElement("tr");
        rows[index].forEach((value, i) => {
          const cell = line.insertCell();
          if (kinds[i] !== "text") cell.className = "n";
          cell.textContent = printable(FORMATS[kinds[i]](value));
        });
        return line;
      }));
      const count = document.createElement("span");
      count.setAttribute("role", "status");
      const numbers = { shown: shown.length.toLocaleString("en-US"), all: rows.length.toLocaleString("en-US"), page: page + 1, pages };
      count.textContent = t("{shown} of {all}", numbers) + (pages > 1 ? t(", page {page} of {pages}", numbers) : "");
      const turn = (text, step) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.disabled = page + step < 0 || page + step >= pages;
        button.addEventListener("click", () => { page += step; draw(); });
        return button;
      };
      pager.replaceChildren(...(pages > 1 ? [turn(t("previous"), -1), turn(t("next"), 1)] : []), count);
    };

    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        up = sorted === column ? !up : kinds[column] === "text";
        sorted = column;
        const compare = (x, y) => (x < y ? -1 : x > y ? 1 : 0);
        order.sort((a, b) => (up ? 1 : -1) * compare(rows[a][column], rows[b][column]) || a - b);
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        page = 0;
        draw();
      });
    });
    document.querySelector(`input[data-table="${name}"]`).addEventListener("input", (event) => {
      words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      page = 0;
      draw();
    });
    draw();
    redraws.push(draw);
  }

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
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = t("show {count} more", { count: hidden.toLocaleString("en-US") });
      button.addEventListener("click", () => { most = Infinity; draw(); });
      more.replaceChildren(...(hidden ? [button] : []));
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

  // --- charts ---------------------------------------------------------------------------------
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => root.dataset.theme === "dark";
  const tones = () => dark()
    ? ["#4c8dd6", "#3f9c8f", "#b98a2f", "#a371d1", "#c46a8d", "#6f9a3e", "#8b94a0"]
    : ["#2f6db5", "#21776b", "#96690d", "#7c4bb3", "#a3426b", "#4d7320", "#5c6672"];
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const base = () => ({
    animation: !still,
    textStyle: { color: color("--fg"), fontFamily: "system-ui, sans-serif" },
    color: tones(),
    tooltip: { confine: true, backgroundColor: color("--card"), borderColor: color("--line"), textStyle: { color: color("--fg") } },
  });
  const axis = () => ({ axisLine: { lineStyle: { color: color("--line") } }, axisLabel: { color: color("--dim") }, splitLine: { lineStyle: { color: color("--line") } } });
  const go = (finding) => { location.hash = `finding-${finding}`; };
  const named = (finding) => { const [rule, name, place] = data.findings[finding]; return `${rule} ${name} ${place}`; };

  const pareto = () => {
    const rows = data.tables.operators.slice(0, 24);
    let sum = 0;
    const along = rows.map((row) => (sum += row[8]));
    const marks = rows.map((row) => data.marked[row[0]] || []);
    return {
      ...base(),
      grid: { left: 64, right: 56, top: 24, bottom: 110 },
      tooltip: { ...base().tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter: ([item]) => {
        const row = rows[item.dataIndex];
        const found = marks[item.dataIndex].slice(0, 5).map((n) => `<br>● ${html(named(n))}`).join("");
        return `<b>${html(row[0])}</b> ${html(row[1])}<br>${time(row[3])} ${FORMATS.count(row[2])} ${t("calls")}, ${FORMATS.share(row[8])}<br>${html(row[10])}${found}`;
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

  const treemap = () => {
    const types = new Map();
    for (const [type, shapes, path, line, name, calls, total] of data.cells) {
      const kind = types.get(type) || types.set(type, { name: type, value: 0, calls: 0, inner: new Map() }).get(type);
      const key = shapes || t("no shapes recorded");
      const shape = kind.inner.get(key) || kind.inner.set(key, { name: key, value: 0, calls: 0, children: [] }).get(key);
      shape.children.push({ name: path ? `${path}:${line} ${name}` : t("no line known"), value: total, calls });
      for (const part of [kind, shape]) { part.value += total; part.calls += calls; }
    }
    const tree = [...types.values()].map(({ inner, ...kind }) => ({ ...kind, children: [...inner.values()] }));
    return {
      ...base(),
      tooltip: { ...base().tooltip, formatter: ({ treePathInfo: path, data: item }) =>
        `${path.slice(1).map((part) => html(cut(part.name, 120))).join("<br>")}<br>${time(item.value || 0)}, ${FORMATS.share((item.value || 0) / (data.compute || 1))}${item.calls ? `, ${FORMATS.count(item.calls)} ${t("calls")}` : ""}` },
      series: [{
        type: "treemap", name: t("all"), data: tree, leafDepth: 1, roam: false, left: 0, right: 0, top: 0, bottom: 32,
        label: { formatter: ({ name, value }) => `${cut(printable(name), 60)}\n${time(value)}`, color: "#fff", fontSize: 12, lineHeight: 17, overflow: "truncate" },
        itemStyle: { borderColor: color("--bg"), borderWidth: 1, gapWidth: 1 },
        breadcrumb: { left: 0, itemStyle: { color: color("--card"), borderColor: color("--line"), textStyle: { color: color("--fg") } }, emphasis: { itemStyle: { color: color("--line"), textStyle: { color: color("--fg") } } } },
        visibleMin: 30, drillDownIcon: "",
      }],
    };
  };

  const timeline = () => {
    const { lanes, labels, spans, length_ns: length } = data.timeline;
    const owned = spans.filter((span) => span[4] >= 0);
    const used = lanes.filter((_, lane) => spans.some((span) => span[0] === lane));
    const place = lanes.map((name) => used.indexOf(name));
    const names = [...used, ...(owned.length ? ["findings"] : [])].map((lane) => ({ compute: t("compute"), communication: t("communication"), "AI CPU": "AI CPU", findings: t("findings") }[lane]));
    const rows = [
      ...spans.map(([lane, start, ns, label, finding, count]) => [place[lane], start, start + ns, labels[label], finding, count]),
      ...owned.map(([, start, ns, , finding, count]) => [names.length - 1, start, start + ns, data.findings[finding][0], finding, count]),
    ];
    const tone = new Map();
    const toneOf = (label) => tones()[(tone.get(label) ?? tone.set(label, tone.size).get(label)) % 6];
    return {
      ...base(),
      grid: { left: 110, right: 24, top: 12, bottom: 84 },
      tooltip: { ...base().tooltip, formatter: ({ value: [, start, end, label, finding, count] }) =>
        `<b>${html(label)}</b>${count > 1 ? ` ${t("and {count} short neighbours", { count: count - 1 })}` : ""}<br>${time(end - start)} @ ${time(start)}${finding >= 0 ? `<br>● ${html(named(finding))}` : ""}` },
      xAxis: { ...axis(), type: "value", min: 0, max: length, axisLabel: { color: color("--dim"), formatter: time, hideOverlap: true } },
      yAxis: { ...axis(), type: "category", inverse: true, data: names },
      dataZoom: [{ type: "inside", filterMode: "weakFilter" }, { type: "slider", filterMode: "weakFilter", height: 22, bottom: 14, labelFormatter: time, textStyle: { color: color("--dim") }, borderColor: color("--line") }],
      series: [{
        type: "custom", data: rows, encode: { x: [1, 2], y: 0 }, clip: true, progressive: 0,
        renderItem: (params, api) => {
          const [x, y] = api.coord([api.value(1), api.value(0)]);
          const width = Math.max(1, api.coord([api.value(2), api.value(0)])[0] - x);
          const height = api.size([0, 1])[1] * 0.62;
          const box = params.coordSys;
          const left = Math.max(x, box.x), right = Math.min(x + width, box.x + box.width);
          if (right <= left) return null;
          const label = rows[params.dataIndex][3];
          const found = rows[params.dataIndex][4] >= 0;
          return {
            type: "rect",
            shape: { x: left, y: y - height / 2, width: right - left, height },
            style: { fill: found ? tones()[2] : toneOf(label), stroke: found && right - left > 6 ? color("--fg") : null, lineDash: [3, 2] },
            textContent: right - left > 48 ? { style: { text: printable(label), fill: "#fff", fontSize: 11, width: right - left - 8, overflow: "truncate" } } : undefined,
            textConfig: { position: "inside" },
          };
        },
      }],
      clicked: ({ value }) => value[4] >= 0 && go(value[4]),
    };
  };

  const CHARTS = { pareto, treemap, timeline };
  const made = new Map();
  const make = (id) => {
    const { clicked, ...options } = CHARTS[id]();
    made.get(id)?.dispose();
    const element = byId(id);
    element.style.display = "block";
    const chart = echarts.init(element, null, { renderer: "svg" });
    chart.setOption(options);
    if (clicked) chart.on("click", clicked);
    made.set(id, chart);
  };
  // Drawn when they come into view: a page with a thousand findings opens at once.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !made.has(entry.target.id)) make(entry.target.id);
    }
  }, { rootMargin: "300px" });
  for (const id of Object.keys(CHARTS)) {
    const element = byId(id);
    if (!element) continue;
    element.style.display = "block";
    seen.observe(element);
  }
  addEventListener("resize", () => { for (const chart of made.values()) chart.resize(); });
  addEventListener("beforeprint", () => { for (const id of Object.keys(CHARTS)) if (byId(id) && !made.has(id)) make(id); });

  const theme = byId("theme");
  const say = () => { theme.setAttribute("aria-pressed", String(dark())); };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("npufix-theme", root.dataset.theme); } catch { /* not kept */ }
    say();
    for (const id of [...made.keys()]) make(id);
  });
  say();

  const chosen = byId("language");
  const speak = (language) => {
    root.lang = language;
    for (const part of document.querySelectorAll(".t")) part.textContent = part.dataset[language];
    for (const part of document.querySelectorAll("[data-label-en]")) part.setAttribute("aria-label", language === "zh" ? part.dataset.labelZh : part.dataset.labelEn);
    chosen.lang = language === "zh" ? "en" : "zh";
    chosen.textContent = language === "zh" ? "English" : "中文";
    for (const draw of redraws) draw();
    for (const id of [...made.keys()]) make(id);
  };
  chosen.addEventListener("click", () => {
    speak(chosen.lang);
    try { localStorage.setItem("npufix-language", root.lang); } catch { /* not kept */ }
  });
  let kept = null;
  try { kept = localStorage.getItem("npufix-language"); } catch { /* not kept */ }
  if ((kept === "zh" || kept === "en") && kept !== root.lang) speak(kept);
})();
