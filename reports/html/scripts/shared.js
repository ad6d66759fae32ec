"use strict";
// What the scripts of a page share: its data, its language, figures and colours.
const page = (() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  root.classList.add("scripts");

  // What the page says, in the language that it is in now.
  const t = (text, values = {}) => {
    const said = root.lang === "zh" ? data.words[text] || text : text;
    return said.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  };
  // What is in a part of the page, in that language.
  const speak = (within) => {
    for (const part of within.querySelectorAll(".t")) part.textContent = part.dataset[root.lang];
    for (const part of within.querySelectorAll("[data-label-en]")) part.setAttribute("aria-label", root.lang === "zh" ? part.dataset.labelZh : part.dataset.labelEn);
  };
  // Functions that draw anew: after a change of the language, after one of the language or theme.
  const redraws = [], repaints = [];

  // The same figures as the program prints (quantities.py): three significant digits.
  const three = (x) => String(Number(x.toPrecision(3)));
  const even = (x) => { const low = Math.floor(x); return x - low === 0.5 ? low + (low % 2) : Math.round(x); };
  const many = (x) => x.toLocaleString("en-US");
  const TIMES = [[60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]], ROUNDS_UP = 0.9995;
  const time = (ns) => {
    const [size, name] = TIMES.find(([unit]) => Math.abs(ns) >= unit * ROUNDS_UP) || TIMES[3], value = ns / size;
    return `${Math.abs(value) >= 100 ? many(even(value)) : three(value)} ${name}`;
  };
  const percent = (x) => `${(100 * x).toFixed(1)}%`;
  const FORMATS = {
    ns: time,
    heat: time,
    share: percent,
    calls: (x) => (Math.abs(x) >= 999.5 || Math.abs(x - Math.round(x)) < 1e-6 ? many(even(x)) : three(x)),
    number: String,
    signed: (ns) => `${Math.round(ns) > 0 ? "+" : Math.round(ns) < 0 ? "-" : ""}${time(Math.abs(ns))}`,
    relative: (x) => (x >= 30 ? ">30x" : x + 1 >= 10 ? `${three(x + 1)}x` : `${x < 0 ? "" : "+"}${percent(x)}`),
  };
  const WORDS = new Set(["text", "said", "findings"]);
  const printable = (text) => String(text).replace(/[\p{Cc}\p{Cf}]/gu, "?");
  const figure = (value, kind) => {
    if (value === null) return kind === "number" ? "?" : "—";
    if (typeof value === "string") return kind === "text" ? printable(short(value)) : value && t(value);
    return FORMATS[kind](value);
  };
  const MOST = 300;
  const short = (text) => (text.length > MOST ? `${text.slice(0, MOST)}… (${many(text.length)})` : text);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", act);
    return made;
  };

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => root.dataset.theme === "dark";
  const go = (finding) => { location.hash = `finding-${finding}`; };
  const named = (finding) => { const [rule, name, place] = data.findings[finding]; return `${finding + 1} ${rule} ${name} ${place}`; };

  return { root, data, byId, t, speak, redraws, repaints, time, many, percent, figure, WORDS, printable, cut, button, color, dark, go, named };
})();
