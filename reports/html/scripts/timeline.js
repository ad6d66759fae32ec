"use strict";
// The kernels of one step over time: a lane per kind of kernel, and one for those of findings.
(() => {
  const { data, t, time, many, percent, printable, html, color, go, named } = page;
  const { base, axis, tones, ink } = charts;
  if (!data.timeline) return;
  const { lanes, labels, spans, length_ns: length } = data.timeline;

  const owned = spans.filter((span) => span[4] >= 0 && span[4] < data.findings.length);
  const used = lanes.filter((_, lane) => spans.some((span) => span[0] === lane));
  const place = lanes.map((name) => used.indexOf(name));
  const shown = [...used, ...(owned.length ? ["findings"] : [])];
  const names = () => shown.map((lane) => ({ compute: t("compute"), communication: t("communication"), "AI CPU": "AI CPU", findings: t("findings") }[lane]));
  const rows = [
    ...spans.map(([lane, start, ns, label, finding, count]) => [place[lane], start, start + ns, labels[label], finding, count]),
    ...owned.map(([, start, ns, , finding, count]) => [shown.length - 1, start, start + ns, data.findings[finding][0], finding, count]),
  ];
  const neighbours = (count) => (count > 1 ? ` ${t("and {count} short neighbours", { count: count - 1 })}` : "");

  const timeline = () => {
    const tone = new Map();
    const toneOf = (label) => tones()[(tone.get(label) ?? tone.set(label, tone.size).get(label)) % 6];
    return {
      ...base(),
      grid: { left: 110, right: 24, top: 12, bottom: 84 },
      tooltip: { ...base().tooltip, formatter: ({ value: [, start, end, label, finding, count] }) =>
        `<b>${html(label)}</b>${neighbours(count)}<br>${time(end - start)} @ ${time(start)}${finding >= 0 ? `<br>● ${html(named(finding))}` : ""}` },
      xAxis: { ...axis(), type: "value", min: 0, max: length, axisLabel: { color: color("--dim"), formatter: time, hideOverlap: true } },
      yAxis: { ...axis(), type: "category", inverse: true, data: names() },
      dataZoom: [{ type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false }, { type: "slider", filterMode: "weakFilter", height: 22, bottom: 14, labelFormatter: time, textStyle: { color: color("--dim") }, borderColor: color("--line") }],
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
            emphasis: { style: { stroke: color("--fg"), lineWidth: 2, lineDash: "solid" } },
            textContent: right - left > 48 ? { style: { text: printable(label), fill: ink(), fontSize: 11, width: right - left - 8, overflow: "truncate" } } : undefined,
            textConfig: { position: "inside" },
          };
        },
      }],
      clicked: ({ value }) => value[4] >= 0 && go(value[4]),
    };
  };

  // --- by keyboard: along a lane, from lane to lane, closer and back ----------------------------
  const inLanes = shown.map((_, lane) => [...rows.keys()].filter((at) => rows[at][0] === lane).sort((a, b) => rows[a][1] - rows[b][1]));
  const zoom = (from, to) => {
    const wide = Math.min(length, to - from), start = Math.min(Math.max(0, from), length - wide);
    charts.of("timeline").dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: start, endValue: start + wide });
  };
  const view = () => {
    const { startValue, endValue } = charts.of("timeline").getModel().getComponent("dataZoom", 0).option;
    return [startValue ?? 0, endValue ?? length];
  };
  const middle = (at) => (rows[at][1] + rows[at][2]) / 2;
  const closer = (at, by) => {
    const [from, to] = view(), wide = Math.max(1000, (to - from) * by);
    zoom(middle(at) - wide / 2, middle(at) + wide / 2);
    return at;
  };
  const seen = (at) => {
    const [from, to] = view();
    if (middle(at) < from || middle(at) > to) zoom(middle(at) - (to - from) / 2, middle(at) + (to - from) / 2);
    return at;
  };
  const along = (at, by) => {
    const lane = inLanes[rows[at][0]];
    return seen(lane[keyboard.limited(lane.indexOf(at) + by, lane.length)]);
  };
  const across = (at, by) => {
    const lane = inLanes[keyboard.limited(rows[at][0] + by, inLanes.length)];
    if (lane === inLanes[rows[at][0]]) return at;
    return seen(lane.reduce((best, other) => (Math.abs(middle(other) - middle(at)) < Math.abs(middle(best) - middle(at)) ? other : best)));
  };
  const KEYS = {
    ArrowRight: (at) => along(at, 1),
    ArrowLeft: (at) => along(at, -1),
    ArrowDown: (at) => across(at, 1),
    ArrowUp: (at) => across(at, -1),
    Home: (at) => along(at, -Infinity),
    End: (at) => along(at, Infinity),
    "+": (at) => closer(at, 1 / 2),
    "=": (at) => closer(at, 1 / 2),
    "-": (at) => closer(at, 2),
    Enter: (at) => { if (rows[at][4] >= 0) go(rows[at][4]); return at; },
    Escape: () => { zoom(0, length); return null; },
  };
  const keys = (key, at) => {
    if (!KEYS[key]) return undefined;
    const first = inLanes.find((lane) => lane.length);
    if (!first) return null;
    return at === null && key !== "Escape" ? seen(first[0]) : KEYS[key](at);
  };
  const text = (at) => {
    const [lane, start, end, label, finding, count] = rows[at];
    const [from, to] = view();
    const found = finding >= 0 ? ` ● ${printable(named(finding))}` : "";
    const looked = to - from < length ? `; ${t("{share} of the time shown", { share: percent((to - from) / length) })}` : "";
    return `${names()[lane]}, ${t("{n} of {n2}", { n: many(1 + inLanes[lane].indexOf(at)), n2: many(inLanes[lane].length) })}: ${printable(label)}${neighbours(count)}, ${time(end - start)} @ ${time(start)}${found}${looked}`;
  };
  const point = (at) => charts.of("timeline").convertToPixel({ seriesIndex: 0 }, [rows[at][1], rows[at][0]]);

  charts.add({ timeline });
  keyboard.add("timeline", { keys, text, point });
})();
