"use strict";
// One step over time: the host, kernels in lanes, communication, and why the device was idle.
(() => {
  const { data, byId, t, time, percent, many, color, go, named, redraws } = page;
  const { label, mixed, stripes, limited, ticks } = picture;
  if (!data.timeline) return;
  const { lanes, labels, places, spans, length_ns: length } = data.timeline;
  const AXIS = 22, PINS = 24, MAP = 26, GAP = 6, MOVED = 4, RADIUS = 9, SHORTEST = 200;
  const TALL = { host: 24, compute: 30, "AI CPU": 22, communication: 26, idle: 22, critical: 18 };
  const CAUSES = { late: () => t("idle: not launched yet"), value: () => t("idle: the host waits for a value"), loading: () => t("idle: the host waits for the next batch"), launched: () => t("idle: launched, not started"), unknown: () => t("idle: cause not recorded") };
  const NAMES = { host: () => t("host"), compute: () => t("compute"), communication: () => t("communication"), "AI CPU": () => "AI CPU", idle: () => t("idle"), critical: () => t("critical path") };

  // --- what lies where: [lane, start, end, label, finding, count, place], by lane and start -------
  const rows = spans.map(([lane, start, ns, name, finding, count, place]) => ({ lane, start, end: start + ns, name, finding: finding < data.findings.length ? finding : -1, count, place }));
  const inLanes = lanes.map((_, lane) => rows.filter((row) => row.lane === lane).sort((a, b) => a.start - b.start));
  // The lane of the critical path has the colours of the others: a host, links, and kernels.
  const linked = new Set(rows.filter((row) => lanes[row.lane].kind === "communication").map((row) => row.name));
  const toneOf = (row, kind) => (kind === "idle" ? labels[row.name] : kind !== "critical" ? kind : labels[row.name] === "host" ? "host" : !labels[row.name] ? "unknown" : linked.has(row.name) ? "communication" : "compute");
  const owned = rows.filter((row) => row.finding >= 0).sort((a, b) => a.finding - b.finding || a.start - b.start);
  const top = [];
  let below = AXIS + (owned.length ? PINS : 4);
  for (const { kind } of lanes) { top.push(below); below += TALL[kind] + GAP; }
  const bottom = below;
  const titleOf = ({ kind, number, stream }) => (stream >= 0 ? `${NAMES[kind]()} ${t("stream")} ${stream}` : number > 1 ? `${NAMES[kind]()} ${number}` : NAMES[kind]());

  const shortOf = (lane) => (lane.stream >= 0 ? `${NAMES[lane.kind]()} ${lane.stream}` : titleOf(lane)); // beside the lane

  let view = [0, length], drag = null, alone = -1, left = 96, pins = [];
  const x = (ns, width) => left + ((ns - view[0]) / (view[1] - view[0])) * (width - left);
  const zoom = (from, to) => {
    const wide = Math.min(length, Math.max(SHORTEST, to - from)), start = Math.min(Math.max(0, from), length - wide);
    view = [start, start + wide];
    made.hide();
    made.repaint();
  };

  // --- drawing -----------------------------------------------------------------------------------
  const tones = (pen) => {
    const idle = color("--idle"), host = color("--host"), [accent, ink, bg, fg] = ["--accent", "--ink", "--bg", "--fg"].map(color);
    return { accent, ink, bg, fg, host, compute: color("--compute"), "AI CPU": color("--compute-2"), communication: color("--communication"), late: stripes(pen, idle, host, "/"), value: stripes(pen, idle, host, "|"), loading: stripes(pen, idle, host, "-"), launched: idle, unknown: mixed(idle, color("--bg"), 0.6) };
  };
  const drawLane = (pen, lane, width, tone) => {
    const { kind } = lanes[lane], y = top[lane], tall = TALL[kind];
    let drawn = -1;
    for (const row of inLanes[lane]) {
      if (row.end < view[0] || row.start > view[1]) continue;
      const from = Math.max(left, x(row.start, width)), to = Math.min(width, Math.max(x(row.end, width), x(row.start, width) + 1));
      if (to <= from || (to <= drawn && row.finding < 0)) continue;
      drawn = Math.max(drawn, Math.floor(to));
      const wide = to - from > 3 ? to - from - 0.6 : to - from;
      pen.globalAlpha = alone >= 0 && row.finding !== alone ? 0.25 : 1;
      pen.fillStyle = tone[toneOf(row, kind)];
      pen.fillRect(from, y, wide, tall);
      if (row.finding >= 0) { pen.fillStyle = tone.accent; pen.fillRect(from, y + tall - 4, wide, 4); }
      if (kind !== "idle") { pen.fillStyle = tone.ink; label(pen, labels[row.name] && nameOf(row), from + 4, y + tall / 2, wide - 8); }
      else if (wide > 60) {
        const said = time(row.end - row.start), asked = pen.measureText(said).width;
        if (asked + 12 < wide) {
          pen.fillStyle = tone.bg; pen.fillRect(from + wide / 2 - asked / 2 - 4, y + 3, asked + 8, tall - 6);
          pen.fillStyle = tone.fg; pen.fillText(said, from + wide / 2 - asked / 2, y + tall / 2);
        }
      }
    }
    pen.globalAlpha = 1;
  };
  // A pin for each finding at the longest of its kernels in view, the most rewarding first.
  const drawPins = (pen, width) => {
    pins = [];
    const longest = new Map();
    for (const row of owned) {
      if (row.end < view[0] || row.start > view[1]) continue;
      const best = longest.get(row.finding);
      if (!best || row.end - row.start > best.end - best.start) longest.set(row.finding, row);
    }
    for (const [finding, row] of longest) {
      const middle = (Math.max(left, x(row.start, width)) + Math.min(width, x(row.end, width))) / 2;
      const at = Math.min(width - RADIUS - 1, Math.max(left + RADIUS, middle));
      if (pins.some((pin) => Math.abs(pin.x - at) < 2 * RADIUS + 2)) continue;
      pins.push({ x: at, y: AXIS + RADIUS + 1, finding, row });
      const faint = alone >= 0 && finding !== alone;
      pen.globalAlpha = faint ? 0.25 : 1;
      pen.fillStyle = color("--accent");
      pen.fillRect(at - 0.75, AXIS + 2 * RADIUS, 1.5, top[row.lane] - AXIS - 2 * RADIUS);
      pen.beginPath(); pen.arc(at, AXIS + RADIUS + 1, RADIUS, 0, 2 * Math.PI); pen.fill();
      pen.fillStyle = color("--ink");
      pen.textAlign = "center";
      pen.fillText(String(finding + 1), at, AXIS + RADIUS + 1.5);
      pen.textAlign = "left";
    }
    pen.globalAlpha = 1;
  };
  const drawMap = (pen, width) => {
    const y = bottom + 6, tall = MAP - 10, tone = { compute: color("--compute"), communication: color("--communication"), "AI CPU": color("--compute-2") };
    const at = (ns) => left + (ns / length) * (width - left);
    pen.fillStyle = color("--card"); pen.fillRect(left, y, width - left, tall);
    for (const kind of ["communication", "AI CPU", "compute"]) {
      pen.fillStyle = tone[kind];
      let drawn = -1;
      lanes.forEach((lane, i) => { if (lane.kind === kind) for (const row of inLanes[i]) {
        if (at(row.end) <= drawn) continue;
        pen.fillRect(at(row.start), y + (kind === "communication" ? tall / 2 : 2), Math.max(0.7, at(row.end) - at(row.start)), tall / 2 - 2);
        drawn = at(row.end);
      } });
    }
    pen.globalAlpha = 0.12; pen.fillStyle = color("--fg"); pen.fillRect(at(view[0]), y, at(view[1]) - at(view[0]), tall);
    pen.globalAlpha = 1; pen.strokeStyle = color("--dim"); pen.lineWidth = 1; pen.strokeRect(at(view[0]) + 0.5, y + 0.5, Math.max(2, at(view[1]) - at(view[0]) - 1), tall - 1);
  };
  const draw = (pen, width, tall, at) => {
    left = width < 640 ? 0 : 112;
    const tone = tones(pen);
    pen.fillStyle = color("--dim");
    for (const ns of ticks(view[0], view[1], (width - left) / 110)) {
      const here = x(ns, width);
      pen.fillStyle = color("--line"); pen.fillRect(here, AXIS - 4, 1, bottom - AXIS);
      pen.fillStyle = color("--dim"); if (here + 60 < width) pen.fillText(time(ns), here + 4, AXIS / 2);
    }
    lanes.forEach((lane, i) => {
      pen.fillStyle = color("--dim");
      if (left) label(pen, shortOf(lane), 8, top[i] + TALL[lane.kind] / 2, left - 16);
      drawLane(pen, i, width, tone);
    });
    if (left && owned.length) { pen.fillStyle = color("--accent"); label(pen, t("findings"), 8, AXIS + RADIUS + 1, left - 16); }
    drawPins(pen, width);
    drawMap(pen, width);
    if (drag?.zooms) { pen.globalAlpha = 0.15; pen.fillStyle = color("--fg"); pen.fillRect(Math.min(drag.from, drag.to), AXIS, Math.abs(drag.to - drag.from), bottom - AXIS); pen.globalAlpha = 1; }
    if (at !== null) {
      const row = rows[at];
      pen.strokeStyle = color("--fg"); pen.lineWidth = 2;
      pen.strokeRect(Math.max(left, x(row.start, width)), top[row.lane] - 1, Math.max(3, Math.min(width - 2, x(row.end, width)) - Math.max(left, x(row.start, width))), TALL[lanes[row.lane].kind] + 2);
    }
  };

  // --- what is under the pointer, and in words ---------------------------------------------------
  const hit = (px, py) => {
    const pin = pins.find((one) => Math.hypot(one.x - px, one.y - py) < RADIUS + 2);
    if (pin) return rows.indexOf(pin.row);
    const lane = top.findIndex((y, i) => py >= y && py < y + TALL[lanes[i].kind]);
    if (lane < 0 || px < left) return null;
    const width = made.canvas.clientWidth;
    const ns = view[0] + ((px - left) / (width - left)) * (view[1] - view[0]), slack = (1.5 / (width - left)) * (view[1] - view[0]);
    let best = null;
    for (const row of inLanes[lane]) if (row.start - slack <= ns && row.end + slack >= ns && (!best || row.end - row.start < best.end - best.start || best.end < ns)) best = row;
    return best ? rows.indexOf(best) : null;
  };
  const nameOf = (row) => (lanes[row.lane].kind === "idle" ? CAUSES[labels[row.name]]() : labels[row.name] === "host" ? NAMES.host() : labels[row.name] || CAUSES.unknown());
  const text = (at) => {
    const row = rows[at], lane = inLanes[row.lane];
    const more = row.count > 1 ? ` ${t("and {count} short neighbours", { count: many(row.count - 1) })}` : "";
    const where = row.place >= 0 && places[row.place] ? `; ${places[row.place]}` : "";
    const found = row.finding >= 0 ? `; ● ${named(row.finding)}` : "";
    const looked = view[1] - view[0] < length ? `; ${t("{share} of the time shown", { share: percent((view[1] - view[0]) / length) })}` : "";
    return `${titleOf(lanes[row.lane])}, ${t("{n} of {n2}", { n: many(1 + lane.indexOf(row)), n2: many(lane.length) })}: ${nameOf(row)}${more}, ${time(row.end - row.start)} @ ${time(row.start)}${where}${found}${looked}`;
  };

  // --- by keyboard: along a lane, from lane to lane, closer and back ------------------------------
  const middle = (row) => (row.start + row.end) / 2;
  const seen = (row) => {
    if (middle(row) < view[0] || middle(row) > view[1]) { const half = (view[1] - view[0]) / 2; zoom(middle(row) - half, middle(row) + half); }
    return rows.indexOf(row);
  };
  const closer = (at, by) => { const half = ((view[1] - view[0]) * by) / 2, here = at === null ? (view[0] + view[1]) / 2 : middle(rows[at]); zoom(here - half, here + half); return at; };
  const along = (at, by) => { const lane = inLanes[rows[at].lane]; return seen(lane[limited(lane.indexOf(rows[at]) + by, lane.length)]); };
  const across = (at, by) => {
    for (let lane = rows[at].lane + by; lane >= 0 && lane < lanes.length; lane += by) {
      if (inLanes[lane].length) return seen(inLanes[lane].reduce((best, other) => (Math.abs(middle(other) - middle(rows[at])) < Math.abs(middle(best) - middle(rows[at])) ? other : best)));
    }
    return at;
  };
  const KEYS = {
    ArrowRight: (at) => along(at, 1), ArrowLeft: (at) => along(at, -1), ArrowDown: (at) => across(at, 1), ArrowUp: (at) => across(at, -1),
    Home: (at) => along(at, -Infinity), End: (at) => along(at, Infinity),
    "+": (at) => closer(at, 1 / 2), "=": (at) => closer(at, 1 / 2), "-": (at) => closer(at, 2),
    Enter: (at) => { if (rows[at].finding >= 0) go(rows[at].finding); return at; },
    Escape: () => { alone = -1; zoom(0, length); return null; },
  };
  const keys = (key, at) => {
    if (!KEYS[key]) return undefined;
    const first = inLanes.find((lane) => lane.length);
    if (!first) return null;
    return at === null && key !== "Escape" ? seen(first[0]) : KEYS[key](at);
  };

  const act = (at) => { if (!drag?.moved && rows[at].finding >= 0) go(rows[at].finding); };
  const made = picture.add("timeline", { height: () => bottom + MAP, draw, hit, text, act, keys });

  // --- by pointer: drag to zoom, Ctrl and the wheel, on the strip below to move -------------------
  const { canvas } = made;
  const clear = () => { alone = -1; zoom(0, length); };
  canvas.addEventListener("pointerdown", (event) => {
    const [px, py] = made.place(event);
    drag = { from: px, to: px, view: [...view], moved: false, map: py > bottom, zooms: event.pointerType === "mouse" && py <= bottom };
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || !event.buttons) return;
    drag.to = made.place(event)[0];
    drag.moved ||= Math.abs(drag.to - drag.from) > MOVED;
    const share = (drag.to - drag.from) / (canvas.clientWidth - left);
    if (drag.map) zoom(drag.view[0] + share * length, drag.view[1] + share * length);
    else if (!drag.zooms) zoom(drag.view[0] - share * (drag.view[1] - drag.view[0]), drag.view[1] - share * (drag.view[1] - drag.view[0]));
    else made.repaint();
  });
  addEventListener("pointerup", () => {
    if (!drag) return;
    const ends = drag.zooms && drag.moved ? [drag.from, drag.to].sort((a, b) => a - b).map((px) => view[0] + ((Math.max(left, px) - left) / (canvas.clientWidth - left)) * (view[1] - view[0])) : null;
    drag.zooms = false;
    if (ends) zoom(...ends);
    setTimeout(() => { drag = null; });
  });
  canvas.addEventListener("dblclick", clear);
  canvas.addEventListener("wheel", (event) => {
    const wide = view[1] - view[0];
    if (event.ctrlKey || event.metaKey) {
      const share = Math.max(0, (made.place(event)[0] - left) / (canvas.clientWidth - left)), by = Math.exp(event.deltaY / 300), here = view[0] + share * wide;
      zoom(here - share * wide * by, here + (1 - share) * wide * by);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = ((event.deltaX || event.deltaY) / canvas.clientWidth) * wide;
      zoom(view[0] + by, view[1] + by);
    } else return;
    event.preventDefault();
  }, { passive: false });
  const ZOOMS = { in: () => closer(made.at(), 1 / 2), out: () => closer(made.at(), 2), all: clear };
  for (const one of document.querySelectorAll("[data-zoom]")) one.addEventListener("click", () => ZOOMS[one.dataset.zoom]());

  // --- from a finding to its kernels --------------------------------------------------------------
  const shown = new Set(owned.map((row) => row.finding));
  const offer = () => { for (const one of document.querySelectorAll("[data-show]")) one.hidden = !shown.has(Number(one.dataset.show)); };
  offer();
  redraws.push(offer);
  addEventListener("click", (event) => {
    const pressed = event.target.closest?.("[data-show]");
    if (!pressed) return;
    const own = owned.filter((row) => row.finding === Number(pressed.dataset.show));
    const start = Math.min(...own.map((row) => row.start)), end = Math.max(...own.map((row) => row.end)), slack = (end - start) / 10 + length / 100;
    alone = own[0].finding;
    zoom(start - slack, end + slack);
    byId("timeline-section").scrollIntoView();
  });

  const legend = byId("timeline-legend");
  const used = [...lanes.map(({ kind }) => kind).filter((kind) => !["idle", "AI CPU", "critical"].includes(kind)), ...Object.keys(CAUSES).filter((cause) => rows.some((row) => lanes[row.lane].kind === "idle" && labels[row.name] === cause))];
  const tell = () => {
    const items = [...new Set(used)].map((kind) => [kind, (CAUSES[kind] || NAMES[kind])()]);
    if (owned.length) items.push(["accent", t("has a finding")]);
    legend.replaceChildren(...items.map(([kind, said]) => {
      const item = document.createElement("li"), swatch = document.createElement("i");
      swatch.className = kind;
      item.append(swatch, said);
      return item;
    }));
  };
  tell();
  redraws.push(tell);
})();
