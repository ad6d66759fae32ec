"use strict";
// What pictures on a canvas share: sharpness, the tip under the pointer, keys, and what is said.
const picture = (() => {
  const { root, byId, color, printable, repaints } = page;
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans SC', sans-serif";

  // What is below the first screen is made when it comes near, is reached by key, or is printed.
  const near = (id, make) => {
    const canvas = byId(id);
    const begin = () => { if (!make) return; const made = make; make = null; seen.disconnect(); made(); };
    const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) begin(); }, { rootMargin: "300px" });
    seen.observe(canvas);
    canvas.addEventListener("focus", begin);
    addEventListener("beforeprint", begin);
  };
  // draw(pen, width) draws it and returns nothing; height(width) is how tall it is;
  // hit(x, y) is what lies there, null for nothing; text(thing) says what it is.
  const add = (id, { height, draw, hit, text, act, keys }) => {
    const canvas = byId(id), said = byId(`${id}-said`), tip = canvas.parentElement.querySelector(".tip");
    let at = null, queued = false;
    const paint = () => {
      queued = false;
      const width = canvas.clientWidth;
      if (!width) return;
      const tall = height(width), scale = devicePixelRatio || 1;
      canvas.style.height = `${tall}px`;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(tall * scale);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, tall);
      pen.font = FONT;
      pen.textBaseline = "middle";
      draw(pen, width, tall, at);
    };
    const repaint = () => { if (!queued) { queued = true; requestAnimationFrame(paint); } };
    const place = (event) => { const edge = canvas.getBoundingClientRect(); return [event.clientX - edge.left, event.clientY - edge.top]; };
    const hide = () => { tip.hidden = true; };
    const hover = (event) => {
      const [x, y] = place(event), found = hit(x, y);
      canvas.style.cursor = found === null ? "default" : "pointer";
      if (found === null) { hide(); return; }
      tip.textContent = printable(text(found)).replaceAll("; ", "\n");
      tip.hidden = false;
      tip.style.left = `${Math.max(0, Math.min(x + 14, canvas.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${y + 18}px`;
    };
    const select = (next) => { at = next; said.textContent = at === null ? "" : printable(text(at)); repaint(); };
    canvas.addEventListener("mousemove", hover);
    canvas.addEventListener("mouseleave", hide);
    // A click does not focus it, so that the arrow keys still scroll the page afterwards.
    canvas.addEventListener("mousedown", (event) => event.preventDefault());
    if (act) canvas.addEventListener("click", (event) => { const found = hit(...place(event)); if (found !== null) act(found, select); });
    canvas.addEventListener("focus", () => select(keys("Home", null)));
    canvas.addEventListener("blur", () => select(null));
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const next = keys(event.key, at);
      if (next === undefined) return;
      event.preventDefault();
      select(next);
    });
    repaints.push(() => { paint(); if (at !== null) said.textContent = printable(text(at)); });
    new ResizeObserver(repaint).observe(canvas.parentElement); // it is told of the first size as well
    if (document.activeElement === canvas) select(keys("Home", null));
    return { canvas, repaint, place, hide, select, at: () => at };
  };

  // A text in a box, cut where it does not fit; nothing where not even a few letters do.
  const label = (pen, text, x, y, width) => {
    if (width < 24) return;
    let shown = printable(text), most = Math.floor(width / 5);
    if (shown.length > most) shown = shown.slice(0, most);
    const whole = shown.length === printable(text).length;
    if (whole && pen.measureText(shown).width <= width) { pen.fillText(shown, x, y); return; }
    while (shown.length > 1 && pen.measureText(`${shown}…`).width > width) shown = shown.slice(0, -1);
    if (shown.length > 1) pen.fillText(`${shown}…`, x, y);
  };
  const mixed = (one, other, share) => {
    const rgb = (hex) => { const text = hex.length === 4 ? hex.replace(/[0-9a-f]/gi, "$&$&") : hex; return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)); };
    const [a, b] = [rgb(one), rgb(other)];
    return `rgb(${a.map((value, i) => Math.round(value + share * (b[i] - value))).join(", ")})`;
  };
  // A pattern of stripes: "/" leans, "|" stands, "-" lies.
  const stripes = (pen, back, front, kind) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const inner = tile.getContext("2d");
    inner.fillStyle = back;
    inner.fillRect(0, 0, 6, 6);
    inner.strokeStyle = inner.fillStyle = front;
    inner.lineWidth = 2;
    if (kind === "|") inner.fillRect(0, 0, 4, 6);
    else if (kind === "-") inner.fillRect(0, 3, 6, 3);
    else { inner.beginPath(); for (const by of [-6, 0, 6]) { inner.moveTo(by - 1, 7); inner.lineTo(by + 7, -1); } inner.stroke(); }
    return pen.createPattern(tile, "repeat");
  };
  const limited = (value, end) => Math.min(end - 1, Math.max(0, value));
  // Round times for an axis that is so long.
  const ticks = (from, to, most) => {
    const raw = (to - from) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= raw);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  };
  return { add, near, label, mixed, stripes, limited, ticks, color, root };
})();
