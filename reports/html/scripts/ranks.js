"use strict";
// The heat map of a cluster, on a canvas: a hundred thousand cells are too many elements.
(() => {
  const { data, byId, t, redraws, repaints, time, printable, cut, color, dark } = page;
  const { ranks, hosts, roles, columns } = data.ranks;
  const canvas = byId("map"), tip = byId("map-tip"), said = byId("map-cell");
  const metric = byId("map-metric"), order = byId("map-order");
  const LEFT = 132, BELOW = 26, LABEL = 13, MOST_ROWS = 1024;
  const SCALES = { // light to dark on paper, dark to light on a dark page
    light: [[243, 244, 246], [233, 160, 76], [110, 26, 12]],
    dark: [[32, 40, 52], [180, 86, 27], [255, 236, 176]],
  };

  const shade = (share) => {
    const stops = SCALES[dark() ? "dark" : "light"];
    const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[low].map((value, i) => Math.round(value + (at - low) * (stops[low + 1][i] - value)));
    return `rgb(${mixed.join(", ")})`;
  };
  const middle = (values) => {
    const known = values.filter((value) => value !== null).sort((a, b) => a - b);
    if (!known.length) return -1;
    const half = known.length >> 1;
    return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
  };
  // One outlier must not hide the rest: the colours span what is typical of some rank, and all but
  // a hundredth of the cells. Differences of a few percent are no more than a shade.
  const rangeOf = (matrix, typical) => {
    const known = matrix.flat().filter((value) => value !== null).sort((a, b) => a - b);
    if (!known.length) return null;
    const at = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))];
    const low = at(0.01), high = Math.max(at(0.99), ...typical);
    return { low, high: Math.max(high, 1.1 * low), least: known[0], most: known[known.length - 1] };
  };

  let view = null, here = null;
  const prepare = () => {
    const matrix = data.ranks[metric.value];
    const typical = matrix.map(middle);
    const rows = [...matrix.keys()];
    if (order.value === "mean") rows.sort((a, b) => typical[b] - typical[a]);
    const range = rangeOf(matrix, typical);
    let worst = null;
    matrix.forEach((row, rank) => row.forEach((value, step) => { if (value !== null && (!worst || value > worst.value)) worst = { rank, step, value }; }));
    const slowest = typical.indexOf(typical.reduce((a, b) => Math.max(a, b), -1));
    // Of more ranks than a screen has lines, several are a line: the one with the most time.
    const together = Math.ceil(rows.length / MOST_ROWS);
    view = { matrix, typical, range, rows, worst, slowest, together, lines: Math.ceil(rows.length / together) };
  };
  const worstOf = (line, step) => {
    const group = view.rows.slice(line * view.together, (line + 1) * view.together);
    return group.reduce((a, b) => ((view.matrix[b][step] ?? -1) > (view.matrix[a][step] ?? -1) ? b : a));
  };
  const lineOf = (rank) => Math.floor(view.rows.indexOf(rank) / view.together);
  const nameOf = (rank) => `${ranks[rank] ?? "?"}${roles[rank] ? ` ${t(roles[rank])}` : ""}`;

  const layout = () => {
    const width = Math.max(240, canvas.parentElement.clientWidth);
    const left = width < 500 ? 84 : LEFT;
    const tall = view.lines <= 40 ? 16 : Math.max(1, Math.min(16, Math.floor(640 / view.lines)));
    return { width, left, tall, height: view.lines * tall + BELOW, wide: (width - left - 1) / columns.length };
  };
  const hatch = (pen) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const inner = tile.getContext("2d");
    inner.strokeStyle = color("--dim");
    inner.beginPath(); inner.moveTo(0, 6); inner.lineTo(6, 0); inner.stroke();
    return pen.createPattern(tile, "repeat");
  };

  const cells = (pen, { left, tall, wide }) => {
    const { low, high } = view.range ?? { low: 0, high: 0 };
    const unknown = hatch(pen);
    for (let line = 0; line < view.lines; line++) {
      for (let step = 0; step < columns.length; step++) {
        const value = view.matrix[view.together > 1 ? worstOf(line, step) : view.rows[line]][step];
        pen.fillStyle = value === null || value === undefined ? unknown : shade((value - low) / (high - low || 1));
        const from = Math.round(left + step * wide), to = Math.round(left + (step + 1) * wide);
        const gap = tall >= 8 && wide >= 8 ? 1 : 0;
        pen.fillRect(from, line * tall, Math.max(1, to - from - gap), tall - gap);
      }
    }
  };
  const labels = (pen, { left, tall, wide, height }) => {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const most = Math.floor((left - 18) / 6.2);
    let free = -LABEL;
    const tag = (rank, mark) => {
      const y = lineOf(rank) * tall + tall / 2;
      if (y < free + LABEL) return;
      free = y;
      pen.fillStyle = mark ? color("--fg") : color("--dim");
      pen.textAlign = "right";
      pen.fillText(cut(`${mark}${nameOf(rank)}`, most), left - 8, Math.max(7, y));
      pen.fillRect(left - 5, y - 0.5, 4, 1);
    };
    const marks = (rank) => (rank === view.slowest ? "▶ " : "");
    if (tall >= LABEL) for (const rank of view.rows) tag(rank, marks(rank));
    else {
      const told = view.rows.filter((rank) => roles[rank] || rank === view.slowest);
      const every = Math.ceil(view.rows.length / Math.max(1, Math.floor((view.lines * tall) / 48)));
      const wanted = new Set([...told, ...view.rows.filter((_, i) => i % every === 0 && !told.some((rank) => Math.abs(lineOf(rank) - lineOf(view.rows[i])) * tall < LABEL))]);
      for (const rank of view.rows) if (wanted.has(rank)) tag(rank, marks(rank));
    }
    pen.fillStyle = color("--dim");
    pen.textAlign = "center";
    const every = Math.ceil(56 / wide);
    for (let step = 0; step < columns.length; step += every) pen.fillText(columns[step], Math.max(left + 14, left + (step + 0.5) * wide), height - BELOW / 2);
  };
  const box = (pen, { left, tall, wide }, rank, step, tone) => {
    pen.strokeStyle = color(tone);
    pen.lineWidth = 2;
    pen.strokeRect(left + step * wide - 1, lineOf(rank) * tall - 1, Math.max(4, wide) + 1, Math.max(4, tall) + 1);
  };

  const text = ({ rank, step }) => {
    const value = view.matrix[rank][step];
    const where = `${t("rank")} ${nameOf(rank)}${hosts[rank] ? ` (${hosts[rank]})` : ""}, ${t("step")} ${columns[step]}`;
    if (value === null || value === undefined) return `${printable(where)}: ${t("not recorded")}`;
    const usual = middle(view.matrix.map((row) => row[step]));
    const ratio = usual > 0 ? `, ${t("{ratio} times the median of the step", { ratio: (value / usual).toFixed(2) })}` : "";
    return `${printable(where)}: ${time(value)}${ratio}`;
  };
  const draw = () => {
    prepare();
    const size = layout(), scale = devicePixelRatio || 1;
    canvas.width = size.width * scale;
    canvas.height = size.height * scale;
    canvas.style.width = `${size.width}px`;
    canvas.style.height = `${size.height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    cells(pen, size);
    labels(pen, size);
    if (view.worst) box(pen, size, view.worst.rank, view.worst.step, "--fg");
    if (here) box(pen, size, here.rank, here.step, "--accent");
    byId("map-worst").textContent = view.worst ? `▶ ${t("most")}: ${t("rank")} ${nameOf(view.slowest)}, ${t("median")} ${time(view.typical[view.slowest])}. ▢ ${text(view.worst)}` : "";
    said.textContent = here ? text(here) : "";
    const legend = byId("map-scale");
    legend.replaceChildren();
    if (!view.range) return;
    const bar = document.createElement("i");
    bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(shade).join(", ")})`;
    const { low, high, least, most } = view.range;
    legend.append(`${least < low ? "≤ " : ""}${time(low)} `, bar, ` ${most > high ? "≥ " : ""}${time(high)}`);
  };

  const under = (event) => {
    const { left, tall, wide } = layout();
    const edge = canvas.getBoundingClientRect();
    const step = Math.floor((event.clientX - edge.left - left) / wide), line = Math.floor((event.clientY - edge.top) / tall);
    return step >= 0 && step < columns.length && line >= 0 && line < view.lines ? { rank: worstOf(line, step), step } : null;
  };
  const hide = () => { tip.hidden = true; };
  canvas.addEventListener("mousemove", (event) => {
    const cell = under(event);
    if (!cell) { hide(); return; }
    tip.textContent = text(cell);
    tip.hidden = false;
    const edge = canvas.parentElement.getBoundingClientRect();
    const x = event.clientX - edge.left, y = event.clientY - edge.top;
    tip.style.left = `${Math.max(0, Math.min(x + 14, edge.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 18}px`;
  });
  canvas.addEventListener("mouseleave", hide);
  canvas.addEventListener("click", (event) => { here = under(event) ?? here; draw(); });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns.length], End: [0, columns.length], PageUp: [-16, 0], PageDown: [16, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const at = here ?? { rank: view.worst?.rank ?? view.rows[0], step: view.worst?.step ?? 0 };
    const limited = (value, end) => Math.min(end - 1, Math.max(0, value));
    const row = limited(view.rows.indexOf(at.rank) + (here ? move[0] : 0), view.rows.length);
    here = { rank: view.rows[row], step: limited(at.step + (here ? move[1] : 0), columns.length) };
    draw();
  });
  for (const choice of [metric, order]) choice.addEventListener("change", draw);
  // A finding names ranks: what it links to is their row.
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-rank]");
    const rank = link ? ranks.indexOf(Number(link.dataset.rank)) : -1;
    if (rank < 0) return;
    here = { rank, step: data.ranks[metric.value][rank].reduce((best, value, step, row) => (value > (row[best] ?? -1) ? step : best), 0) };
    draw();
  });
  const speak = () => {
    const names = { computing: t("computing"), exposed: t("exposed communication"), free: t("free"), rank: t("by rank"), mean: t("most first") };
    for (const option of [...metric.options, ...order.options]) option.textContent = names[option.value];
  };
  redraws.push(speak);
  repaints.push(draw);
  addEventListener("resize", draw);
  speak();
  draw();
})();
