"use strict";
// The page of a diagnosis: its findings, and where the time goes.
(() => {
  const { data, byId, t, redraws, time, many, percent, printable, cut, html, button, color, go, named } = page;
  const { base, axis, tones, ink } = charts;

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
        `${path.slice(1).map((part) => html(cut(part.name, 120))).join("<br>")}<br>${time(item.value || 0)}, ${percent((item.value || 0) / (data.compute || 1))}${item.calls ? `, ${many(item.calls)} ${t("calls")}` : ""}` },
      series: [{
        type: "treemap", name: t("all"), data: tree, leafDepth: 1, roam: false, left: 0, right: 0, top: 0, bottom: 32,
        label: { formatter: ({ name, value }) => `${cut(printable(name), 60)}\n${time(value)}`, color: ink(), fontSize: 12, lineHeight: 17, overflow: "truncate" },
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
      dataZoom: [{ type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl" }, { type: "slider", filterMode: "weakFilter", height: 22, bottom: 14, labelFormatter: time, textStyle: { color: color("--dim") }, borderColor: color("--line") }],
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
            textContent: right - left > 48 ? { style: { text: printable(label), fill: ink(), fontSize: 11, width: right - left - 8, overflow: "truncate" } } : undefined,
            textConfig: { position: "inside" },
          };
        },
      }],
      clicked: ({ value }) => value[4] >= 0 && go(value[4]),
    };
  };

  charts.add({ pareto, treemap, timeline });
})();
