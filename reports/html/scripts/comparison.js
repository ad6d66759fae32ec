"use strict";
// The page of a comparison: what explains the difference, operators, predictions, steps.
(() => {
  const { data, byId, t, time, figure, printable, cut, html, color } = page;
  const { base, axis, legend, tones } = charts;
  const OPERATORS = 20;
  const narrow = () => innerWidth < 640;
  const ours = () => ({ before: t("before"), after: t("after"), "smaller parts": t("smaller parts"), unexplained: t("unexplained"), "free time": t("free time"), "exposed communication": t("exposed communication") });

  // Bars that lie, with their names at the left; as tall as there are bars.
  const lying = (id, names, rows, top) => {
    byId(id).style.height = `${names.length * rows + top + 34}px`;
    const wide = narrow() ? 110 : 260;
    return {
      ...base(),
      grid: { left: wide + 12, right: 84, top, bottom: 30 },
      xAxis: { ...axis(), type: "value", axisLabel: { color: color("--dim"), formatter: time, hideOverlap: true } },
      yAxis: { ...axis(), type: "category", inverse: true, data: names.map(printable), axisTick: { show: false }, axisLabel: { color: color("--fg"), width: wide, overflow: "truncate", formatter: (text) => cut(text, 80) } },
    };
  };
  const tip = (formatter) => ({ ...base().tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter });
  const rise = () => tones()[4], fall = () => tones()[1];

  const explanation = () => {
    const parts = data.explanation;
    const names = parts.map(([name]) => ours()[name] || name);
    let sum = 0;
    const bars = parts.map(([, size], i) => {
      if (i === 0 || i === parts.length - 1) { sum = size; return { from: 0, size, tone: tones()[0], text: time(size) }; }
      const from = Math.min(sum, sum + size);
      sum += size;
      return { from, size: Math.abs(size), tone: size > 0 ? rise() : fall(), text: figure(size, "signed") };
    });
    return {
      ...lying("explanation", names, 34, 8),
      tooltip: tip(([item]) => {
        const [, , before, after] = parts[item.dataIndex];
        return `<b>${html(names[item.dataIndex])}</b><br>${bars[item.dataIndex].text}${before === null ? "" : `<br>${time(before)} → ${time(after)}`}`;
      }),
      series: [
        { type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" }, data: bars.map((bar) => bar.from) },
        { type: "bar", stack: "all", barWidth: "62%", data: bars.map((bar) => ({ value: bar.size, itemStyle: { color: bar.tone } })), label: { show: true, position: "right", color: color("--fg"), formatter: ({ dataIndex }) => bars[dataIndex].text } },
      ],
    };
  };

  const operators = () => {
    const rows = data.operators.slice(0, OPERATORS);
    const gap = ([, before, after]) => (before === null || after === null ? "" : figure(after - before, "signed"));
    const one = (name, column, tone) => ({ type: "bar", name, data: rows.map((row) => row[column] ?? "-"), itemStyle: { color: tone } });
    return {
      ...lying("operators", rows.map(([name]) => name), 38, 34),
      legend: legend(),
      tooltip: tip(([item]) => {
        const [name, before, after] = rows[item.dataIndex];
        return `<b>${html(name)}</b><br>${figure(before, "ns")} → ${figure(after, "ns")} ${gap(rows[item.dataIndex])}`;
      }),
      series: [one(t("before"), 1, tones()[6]), { ...one(t("after"), 2, tones()[0]), label: { show: true, position: "right", color: color("--dim"), formatter: ({ dataIndex }) => gap(rows[dataIndex]) } }],
    };
  };

  const predictions = () => {
    const rows = data.predictions;
    const names = rows.map(([name]) => (name === "All together" ? t("All together") : name));
    const range = ([, low, high]) => (low === high ? time(low) : `${time(low)} – ${time(high)}`);
    return {
      ...lying("predictions", names, 44, 34),
      legend: { ...legend(), data: [t("predicted"), t("measured")] },
      tooltip: tip(([item]) => `<b>${html(names[item.dataIndex])}</b><br>${t("predicted")}: ${range(rows[item.dataIndex])}<br>${t("measured")}: ${time(rows[item.dataIndex][3])}`),
      series: [
        { type: "bar", stack: "range", silent: true, itemStyle: { color: "transparent" }, data: rows.map((row) => row[1]) },
        { type: "bar", stack: "range", name: t("predicted"), barWidth: "45%", barMinHeight: 3, itemStyle: { color: tones()[6] }, data: rows.map((row) => row[2] - row[1]) },
        {
          type: "custom", name: t("measured"), itemStyle: { color: tones()[0] }, encode: { x: 1, y: 0 }, data: rows.map((row, i) => [i, row[3]]),
          renderItem: (_, api) => {
            const [x, y] = api.coord([api.value(1), api.value(0)]);
            return { type: "polygon", shape: { points: [[x, y - 11], [x + 8, y], [x, y + 11], [x - 8, y]] }, style: { fill: tones()[0], stroke: color("--bg") }, textContent: { style: { text: time(api.value(1)), fill: color("--fg"), fontSize: 12 } }, textConfig: { position: "right", distance: 6 } };
          },
        },
      ],
    };
  };

  const steps = () => {
    const sides = data.steps;
    const length = (row) => row.computing_ns + row.exposed_communication_ns + row.free_ns;
    const most = Math.max(...sides.flat().map(length), 1);
    const parts = [["computing_ns", t("computing"), 0], ["exposed_communication_ns", t("exposed communication"), 2], ["free_ns", t("free"), 6]];
    const title = (side) => [t("before"), t("after")][side];
    const place = (side) => (narrow() ? { left: 76, right: 12, top: side ? 250 : 60, height: 130 } : { left: side ? "56%" : 76, width: "40%", top: 64, bottom: 30 });
    const name = (row) => `${row.step ?? "?"}${row.left_out ? " *" : ""}`;
    byId("steps").style.height = narrow() ? "430px" : "22rem";
    return {
      ...base(),
      legend: { ...legend(), data: parts.map((part) => part[1]) },
      tooltip: tip((items) => {
        const row = sides[items[0].axisIndex][items[0].dataIndex];
        const why = { "warm-up": t("left out: warm-up"), outlier: t("left out: outlier") }[row.left_out];
        return `<b>${title(items[0].axisIndex)}, ${t("step")} ${row.step ?? "?"}</b> ${time(length(row))}<br>${parts.map(([key, said]) => `${said} ${time(row[key])}`).join("<br>")}${why ? `<br>${why}` : ""}`;
      }),
      grid: sides.map((_, side) => place(side)),
      xAxis: sides.map((rows, side) => ({ ...axis(), type: "category", gridIndex: side, data: rows.map(name), name: title(side), nameLocation: "middle", nameGap: 24, nameTextStyle: { color: color("--dim") } })),
      yAxis: sides.map((_, side) => ({ ...axis(), type: "value", gridIndex: side, max: most, axisLabel: { color: color("--dim"), formatter: time, showMaxLabel: false } })),
      series: sides.flatMap((rows, side) => parts.map(([key, said, tone]) => ({
        type: "bar", stack: `s${side}`, name: said, xAxisIndex: side, yAxisIndex: side, barMaxWidth: 40, itemStyle: { color: tones()[tone] },
        data: rows.map((row) => ({ value: row[key], itemStyle: row.left_out ? { opacity: 0.4 } : {} })),
      }))),
    };
  };

  charts.add({ explanation, operators, predictions, steps });
})();
