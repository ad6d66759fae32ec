"use strict";
// Tables: sorted, searched and turned page by page.
(() => {
  const { data, byId, t, redraws, many, figure, WORDS, button } = page;
  const PAGE = 40, HEATS = 9, SAME = 1.02;

  const size = (value) => (value === null ? -Infinity : value === "new" ? Infinity : value === "gone" ? -1 : value);
  const compared = (kind) => {
    const key = kind === "findings" ? (value) => value.length : WORDS.has(kind) ? (value) => value : size;
    return (x, y) => (key(x) < key(y) ? -1 : key(x) > key(y) ? 1 : 0);
  };
  const fill = (cell, value, kind, range) => {
    if (!WORDS.has(kind)) cell.className = "n";
    if (kind === "findings") {
      for (const number of value) {
        const link = document.createElement("a");
        link.href = `#finding-${number}`;
        link.className = "pin";
        link.title = data.findings[number][0];
        link.textContent = number + 1;
        cell.append(link, " ");
      }
      return;
    }
    if (kind === "share" && value !== null) {
      const bar = document.createElement("span"), part = document.createElement("i");
      bar.className = "bar thin";
      part.className = "compute";
      part.style.width = `${Math.min(100, 100 * value)}%`;
      bar.append(part);
      cell.append(bar);
    }
    cell.append(figure(value, kind));
    if (kind === "text") cell.className = "text";
    if (range && value !== null && range[1] > SAME * range[0]) cell.classList.add("heat", `heat-${Math.round(HEATS * (value - range[0]) / Math.max(range[1] - range[0], 1))}`);
  };

  for (const [name, rows] of Object.entries(data.tables)) {
    const table = byId(`t-${name}`);
    if (!table) continue;
    const kinds = table.dataset.kinds.split(",");
    const body = table.tBodies[0];
    const pager = document.querySelector(`[data-pager="${name}"]`);
    const box = document.querySelector(`input[data-table="${name}"]`);
    const searched = (kind) => WORDS.has(kind) || kind === "number";
    const said = (value, kind) => (kind === "findings" ? value.map((n) => data.findings[n].join(" ")).join(" ") : kind === "said" ? `${value} ${data.words[value] || ""}` : value);
    let texts = null; // only a search needs them
    const made = () => rows.map((row) => row.map((value, i) => (searched(kinds[i]) ? said(value, kinds[i]) : "")).join("\n").toLowerCase());
    const ranges = kinds.map((kind, i) => {
      if (kind !== "heat") return null;
      const known = rows.map((row) => row[i]).filter((value) => value !== null);
      return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : null;
    });
    const order = [...rows.keys()];
    let words = [], number = 0, sorted = -1, up = false;

    const draw = () => {
      if (words.length) texts ??= made();
      const shown = words.length ? order.filter((index) => words.every((word) => texts[index].includes(word))) : order;
      const pages = Math.max(1, Math.ceil(shown.length / PAGE));
      number = Math.min(number, pages - 1);
      body.replaceChildren(...shown.slice(number * PAGE, (number + 1) * PAGE).map((index) => {
        const line = document.createElement("tr");
        rows[index].forEach((value, i) => fill(line.insertCell(), value, kinds[i], ranges[i]));
        return line;
      }));
      const count = document.createElement("span");
      count.setAttribute("role", "status");
      if (!shown.length) {
        const none = body.insertRow().insertCell();
        none.colSpan = kinds.length;
        none.className = "none";
        none.textContent = t("Nothing matches.");
      }
      const numbers = { n: many(shown.length), n2: many(rows.length), page: number + 1, pages };
      count.textContent = t("{n} of {n2}", numbers) + (pages > 1 ? t(", page {page} of {pages}", numbers) : "");
      const turn = (text, step) => {
        const made = button(text, () => { number += step; draw(); (pager.querySelector(`[data-step="${step}"]:enabled`) || pager.querySelector(":enabled"))?.focus(); });
        made.dataset.step = step;
        made.disabled = number + step < 0 || number + step >= pages;
        return made;
      };
      pager.replaceChildren(...(pages > 1 ? [turn(t("previous"), -1), turn(t("next"), 1)] : []), count);
    };

    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const made = button("", () => {
        up = sorted === column ? !up : WORDS.has(kinds[column]) || kinds[column] === "number";
        sorted = column;
        const compare = compared(kinds[column]);
        order.sort((a, b) => (up ? 1 : -1) * compare(rows[a][column], rows[b][column]) || a - b);
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        number = 0;
        draw();
      });
      made.append(...head.childNodes);
      head.append(made);
    });
    box.addEventListener("input", () => {
      words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      number = 0;
      draw();
    });
    draw();
    redraws.push(draw);
  }
})();
