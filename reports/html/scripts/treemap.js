"use strict";
// The treemap of the device time: Type, shapes, line.
(() => {
  const { data, t, time, many, percent, printable, cut, html, color } = page;
  const { base, ink } = charts;

  const grown = () => {
    const types = new Map();
    for (const [type, shapes, path, line, name, calls, total] of data.cells) {
      const kind = types.get(type) || types.set(type, { name: type, value: 0, calls: 0, inner: new Map() }).get(type);
      const key = shapes || t("no shapes recorded");
      const shape = kind.inner.get(key) || kind.inner.set(key, { name: key, value: 0, calls: 0, children: [] }).get(key);
      shape.children.push({ name: path ? `${path}:${line} ${name}` : t("no line known"), value: total, calls });
      for (const part of [kind, shape]) { part.value += total; part.calls += calls; }
    }
    return [...types.values()].map(({ inner, ...kind }) => ({ ...kind, children: [...inner.values()] }));
  };
  const figures = (value, calls) =>
    `${time(value || 0)}, ${percent((value || 0) / (data.compute || 1))}${calls ? `, ${many(calls)} ${t("calls")}` : ""}`;

  const treemap = () => ({
    ...base(),
    tooltip: { ...base().tooltip, formatter: ({ treePathInfo: path, data: item }) =>
      `${path.slice(1).map((part) => html(cut(part.name, 120))).join("<br>")}<br>${figures(item.value, item.calls)}` },
    series: [{
      type: "treemap", animation: false, name: t("all"), data: grown(), leafDepth: 1, roam: false, left: 0, right: 0, top: 0, bottom: 32,
      label: { formatter: ({ name, value }) => `${cut(printable(name), 60)}\n${time(value)}`, color: ink(), fontSize: 12, lineHeight: 17, overflow: "truncate" },
      itemStyle: { borderColor: color("--bg"), borderWidth: 2, gapWidth: 0 },
      emphasis: { itemStyle: { borderColor: color("--fg") }, label: { color: ink() } },
      breadcrumb: { left: 0, itemStyle: { color: color("--card"), borderColor: color("--line"), textStyle: { color: color("--fg") } }, emphasis: { itemStyle: { color: color("--line"), textStyle: { color: color("--fg") } } } },
      visibleMin: 30, drillDownIcon: "",
    }],
  });

  // --- by keyboard: along what is shown, the largest first, into it and out again ---------------
  const series = () => charts.of("treemap").getModel().getSeriesByIndex(0);
  const shown = () => [...series().getViewRoot().children].sort((a, b) => b.getValue() - a.getValue());
  const nodeOf = (at) => series().getData().tree.getNodeByDataIndex(at);
  const enter = (node) => charts.of("treemap").dispatchAction({ type: "treemapRootToNode", seriesIndex: 0, targetNode: node });
  const into = (node) => {
    if (!node.children.length) return node.dataIndex;
    enter(node);
    return shown()[0].dataIndex;
  };
  const outOf = (root) => {
    if (!root.parentNode) return null;
    enter(root.parentNode);
    return root.dataIndex;
  };
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const keys = (key, at) => {
    const nodes = shown();
    if (!nodes.length) return null;
    const here = nodes.findIndex((node) => node.dataIndex === at);
    if (key === "Escape" || key === "Backspace") return outOf(series().getViewRoot());
    if (key === "Enter" && here >= 0) return into(nodes[here]);
    if (!(key in STEPS) && key !== "Enter") return undefined;
    return nodes[here < 0 ? 0 : keyboard.limited(here + (STEPS[key] ?? 0), nodes.length)].dataIndex;
  };
  const text = (at) => {
    const node = nodeOf(at), nodes = shown(), path = node.getAncestors(true).slice(1);
    const place = t("{n} of {n2}", { n: many(1 + nodes.findIndex(({ dataIndex }) => dataIndex === at)), n2: many(nodes.length) });
    return `${path.map((part) => printable(cut(part.name, 120))).join(", ")}: ${figures(node.getValue(), node.getModel().option.calls)} (${place})`;
  };
  const point = (at) => {
    const node = nodeOf(at), root = series().layoutInfo;
    let x = root.x, y = root.y;
    for (const part of node.getAncestors(true)) { x += part.getLayout()?.x ?? 0; y += part.getLayout()?.y ?? 0; }
    return [x, y];
  };

  charts.add({ treemap });
  keyboard.add("treemap", { keys, text, point });
})();
