"use strict";
// Where the time of a step goes, from the whole step down to modules, lines, operators and shapes.
if (page.data.cells) picture.near("icicle", () => {
  const { data, byId, t, time, percent, figure, color, go } = page;
  const { label, mixed, limited } = picture;
  const ROW = 22, MOST_ROWS = 14, THIN = 1.5;
  const { steps, modules, places, types, shapes, rows } = data.cells;

  // --- the tree: a node is { name, kind, value, calls, inner, up, deep } ---------------------------
  const grow = () => {
    const node = (up, name, kind) => ({ name, kind, value: 0, calls: 0, inner: new Map(), up });
    const child = (up, name, kind) => up.inner.get(kind + name) || up.inner.set(kind + name, node(up, name, kind)).get(kind + name);
    const root = node(null, "", "step"), computing = child(root, "", "computing");
    for (const [backward, module, place, type, shape, calls, ns] of rows) {
      let at = computing;
      const way = [at];
      for (const part of modules[module] ? modules[module].split("/") : []) way.push((at = child(at, part, "module")));
      way.push((at = child(at, places[place], "place")));
      way.push((at = child(at, types[type], backward ? "backward" : "forward")));
      if (shapes[shape]) way.push((at = child(at, shapes[shape], "shapes")));
      for (const one of way) { one.value += ns / steps; one.calls += calls / steps; }
    }
    for (const [kind, ns] of [["communication", data.exposed], ["idle", data.idle]]) if (ns > 0) child(root, "", kind).value = ns;
    root.value = [...root.inner.values()].reduce((sum, one) => sum + one.value, 0);
    return settle(root, 0);
  };
  // Modules that hold nothing but one other module are one row.
  const settle = (node, deep) => {
    let inner = [...node.inner.values()];
    while (node.kind === "module" && inner.length === 1 && inner[0].kind === "module") {
      node.name += `/${inner[0].name}`;
      inner = [...inner[0].inner.values()];
    }
    node.inner = inner.sort((a, b) => b.value - a.value);
    for (const one of node.inner) { one.up = node; settle(one, deep + 1); }
    node.deep = deep;
    return node;
  };
  const tree = grow();
  const nodes = [];
  (function list(node) { nodes.push(node); node.inner.forEach(list); })(tree);
  const found = new Map();
  data.findings.forEach(([, , place], i) => { if (place && !found.has(place)) found.set(place, i); });
  const findingOf = (node) => (node.kind === "place" ? found.get(node.name.split(" ")[0]) ?? -1 : -1);
  const FIXED = { step: () => t("step"), computing: () => t("computing"), communication: () => t("exposed communication"), idle: () => t("idle") };
  const nameOf = (node) => FIXED[node.kind]?.() || node.name || (node.kind === "place" ? t("no line known") : "");

  // --- the layout: the ancestors of what is looked at are as wide as all of it ---------------------
  const START = 0.4;
  const worked = tree.inner.find((one) => one.kind === "computing");
  // Where little of the step is computing, its parts would not be seen below the whole.
  const first = worked && worked.value < START * tree.value ? worked : tree;
  let root = first, words = [], drawn = [];
  const within = (node, other) => { for (let at = node; at; at = at.up) if (at === other) return true; return false; };
  const deepest = (node) => Math.max(node.deep, ...node.inner.map(deepest));
  const tallest = Math.min(MOST_ROWS, deepest(tree) + 1);
  const spread = (width) => {
    drawn = [];
    const line = [];
    for (let at = root.up; at; at = at.up) line.unshift(at);
    line.forEach((node, i) => drawn.push({ node, x: 0, y: i * ROW, wide: width }));
    const put = (node, x, wide, row) => {
      if (row >= MOST_ROWS) return;
      drawn.push({ node, x, y: row * ROW, wide });
      let at = x;
      for (const one of node.inner) {
        const own = (wide * one.value) / (node.value || 1);
        if (own >= THIN) put(one, at, own, row + 1);
        at += own;
      }
    };
    put(root, 0, width, line.length);
  };
  const matches = (node) => words.every((word) => nameOf(node).toLowerCase().includes(word));
  const lit = (node) => !words.length || [...ancestors(node)].some(matches) || below(node);
  const ancestors = function* (node) { for (let at = node; at; at = at.up) yield at; };
  const below = (node) => node.inner.some((one) => matches(one) || below(one));
  const draw = (pen, width, _, at) => {
    spread(width);
    const bg = color("--bg"), compute = color("--compute"), ink = color("--ink"), fg = color("--fg"), accent = color("--accent");
    const tones = { step: [color("--card"), fg], computing: [mixed(compute, bg, 0.7), fg], module: [mixed(compute, bg, 0.7), fg], place: [mixed(compute, bg, 0.4), fg], forward: [compute, ink], backward: [color("--compute-2"), ink], shapes: [color("--card"), fg], communication: [color("--communication"), ink], idle: [color("--idle"), fg] };
    for (const { node, x, y, wide } of drawn) {
      const [fill, text] = tones[node.kind], up = node !== root && within(root, node);
      pen.globalAlpha = lit(node) ? (up ? 0.6 : 1) : 0.2;
      pen.fillStyle = fill;
      const own = Math.max(0.7, wide - (wide > 3 ? 1 : 0));
      pen.fillRect(x, y, own, ROW - 1);
      if (findingOf(node) >= 0) { pen.fillStyle = accent; pen.fillRect(x, y + ROW - 4, own, 3); }
      pen.fillStyle = text;
      label(pen, wide > 150 ? `${nameOf(node)}  ${time(node.value)}` : nameOf(node), x + 5, y + ROW / 2, own - 8);
      if (at !== null && nodes[at] === node) { pen.strokeStyle = fg; pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, own - 2, ROW - 3); }
    }
    pen.globalAlpha = 1;
  };

  const hit = (px, py) => {
    const box = drawn.find(({ x, y, wide }) => px >= x && px < x + wide && py >= y && py < y + ROW);
    return box ? nodes.indexOf(box.node) : null;
  };
  const text = (at) => {
    const node = nodes[at], way = [...ancestors(node)].reverse().slice(1).map(nameOf).filter(Boolean);
    const pass = { forward: t("forward"), backward: t("backward") }[node.kind];
    const calls = node.calls ? `, ${figure(node.calls, "calls")} ${t("calls")}` : "";
    const finding = findingOf(node);
    return `${way.join("; ") || nameOf(node)}${pass ? ` (${pass})` : ""}: ${time(node.value)}, ${percent(node.value / (tree.value || 1))}${calls}${finding >= 0 ? `; ● ${page.named(finding)}` : ""}`;
  };
  const look = (node) => { root = node; made.hide(); made.repaint(); };
  const number = (node) => nodes.indexOf(node);
  const beside = (node, by) => { const all = node.up ? node.up.inner : [node]; return number(all[limited(all.indexOf(node) + by, all.length)]); };
  const KEYS = {
    ArrowRight: (node) => beside(node, 1), ArrowLeft: (node) => beside(node, -1),
    Home: (node) => beside(node, -Infinity), End: (node) => beside(node, Infinity),
    ArrowDown: (node) => number(node.inner[0] || node), ArrowUp: (node) => number(node.up || node),
    Enter: (node) => { look(node); if (!node.inner.length && findingOf(node.up) >= 0) go(findingOf(node.up)); return number(node); },
    Escape: () => { look(tree); return null; },
    Backspace: (node) => { look(root.up || tree); return number(node); },
  };
  const keys = (key, at) => {
    if (!KEYS[key]) return undefined;
    if (at === null) return key === "Escape" ? KEYS.Escape() : number(root);
    const next = KEYS[key](nodes[at]);
    if (next !== null && !within(nodes[next], root)) look(tree);
    return next;
  };
  const act = (at, select) => { look(nodes[at] === root && root.up ? root.up : nodes[at]); select(at); };
  const made = picture.add("icicle", { height: () => tallest * ROW, draw, hit, text, act, keys });
  const find = byId("icicle-find");
  find.addEventListener("input", () => { words = find.value.toLowerCase().split(/\s+/).filter(Boolean); made.repaint(); });
  byId("icicle-all").addEventListener("click", () => { find.value = ""; words = []; look(tree); });
});
