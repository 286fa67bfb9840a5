"use strict";
(() => {
  const NARROW = 600; // px: below, a legend takes a line for each name, and a finger scrolls instead of zooming
  const LABEL = 26; // signs of the longest name at an axis, on a narrow page
  const PAPER = 680; // px: A4 and letter between their margins
  const family = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
  const config = {
    responsive: true,
    displaylogo: false,
    // Named one by one: Plotly's own choice has a button that sends the plot to its makers' server.
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  // An entity such as &lt; is one sign.
  const brief = (label) => {
    const signs = label.match(/&\w+;|./gu) ?? [];
    return signs.length <= LABEL ? label : [...signs.slice(0, LABEL - 8), "\u2026", ...signs.slice(-7)].join("");
  };

  const layoutFor = (given, data, width) => {
    const narrow = width < NARROW;
    const named = data.filter((trace) => trace.visible !== false && trace.showlegend !== false).length;
    const layout = {
      ...given,
      font: { family, size: narrow ? 11 : 13 },
      paper_bgcolor: "#ffffff",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: narrow ? 8 : 36, t: 12, b: 8 },
      hoverlabel: { bgcolor: "#1c2127", bordercolor: "#808080", font: { color: "#ffffff", size: 12, family }, align: "left" },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", ...given.legend },
      modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: "#808080", activecolor: "#2176b5" },
      dragmode: narrow ? false : "zoom",
    };
    if (narrow) {
      for (const axis of [layout.xaxis, layout.yaxis]) {
        if (axis?.type === "category") axis.ticktext = axis.ticktext?.map(brief);
        if (axis?.dtick === "D2") axis.dtick = 1; // there is room for powers of ten alone
        if (axis?.title?.text) axis.title.text = axis.title.text.replace(/(.{24,36}?) /g, "$1<br>");
      }
    }
    if (narrow && given.showlegend) layout.height = given.height + 18 * Math.max(named - 2, 0);
    return layout;
  };

  const draw = (plot) => {
    const spec = JSON.parse(document.getElementById(`${plot.id}-data`).textContent);
    const layout = layoutFor(spec.layout, spec.data, plot.clientWidth);
    // Plotly writes into what it is given; the choices below need what was meant.
    const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
    const meant = axes.map((axis) => [axis, layout[axis].range, layout[axis].autorange ?? true]);
    plot.style.height = `${layout.height}px`;
    const drawn = Plotly.newPlot(plot, spec.data, layout, { ...config, displayModeBar: plot.clientWidth < NARROW ? false : "hover" });
    const menu = document.getElementById(`${plot.id}-choice`);
    menu?.addEventListener("change", () => {
      const choice = spec.choices[menu.selectedIndex];
      const shown = new Set(choice.traces);
      const patch = { ...choice.layout };
      for (const [axis, range, auto] of meant) {
        if (range) patch[`${axis}.range`] = [...range];
        else patch[`${axis}.autorange`] = auto;
      }
      Plotly.update(plot, { visible: spec.data.map((_, i) => shown.has(i)) }, patch);
    });
    return drawn;
  };

  // Beyond 2^53 integers that differ may be one and the same Number.
  const exactly = (x, y) => ([x, y].every((key) => /^-?\d+$/.test(key)) ? Number(BigInt(x) - BigInt(y)) : 0);

  const compare = (a, b) => {
    const [x, y] = [a.dataset.key, b.dataset.key];
    if (x !== undefined && y !== undefined) return Number(x) - Number(y) || exactly(x, y);
    // Numbers come before words: else the order would depend on which two are compared.
    if (x !== undefined || y !== undefined) return x !== undefined ? -1 : 1;
    return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  };

  const sort = (button) => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const cellOf = (row) => row.cells[heading.cellIndex];
    const missing = (row) => (cellOf(row).textContent === "\u2013" ? 1 : 0);
    const rows = [...body.rows].sort(
      (a, b) => missing(a) - missing(b) || (down ? -1 : 1) * compare(cellOf(a), cellOf(b)),
    );
    body.append(...rows);
  };

  const filter = (input) => {
    const table = document.getElementById(input.dataset.filters);
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    const all = table.tBodies[0].rows.length;
    document.getElementById(`${table.id}-count`).textContent = count === all ? `${all} rows` : `${count} of ${all} rows`;
  };

  for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));
  for (const input of document.querySelectorAll("input[data-filters]")) input.addEventListener("input", () => filter(input));
  // The file that is read now: the last one whose top has gone by.
  const links = [...document.querySelectorAll("nav a")];
  const mark = () => {
    const passed = links.filter((link) => document.querySelector(link.hash).getBoundingClientRect().top < innerHeight / 3);
    for (const link of links) link.toggleAttribute("aria-current", link === (passed.at(-1) ?? links[0]));
  };
  window.addEventListener("scroll", mark, { passive: true });
  mark();
  // A plot has the width of the window until it is told that of the paper.
  const resize = (size) => document.querySelectorAll(".plot").forEach((plot) => Plotly.relayout(plot, size));
  window.addEventListener("beforeprint", () => resize({ width: PAPER }));
  window.addEventListener("afterprint", () => resize({ width: null, autosize: true }));
  // For whoever waits for the plots, say before taking a picture of the page.
  window.drawn = Promise.all([...document.querySelectorAll(".plot")].map(draw));
})();
