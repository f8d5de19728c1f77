"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const filters = document.getElementById("filters");
  const chosenLayers = () => new Set(all("input[name=layer]:checked").map((box) => Number(box.value)));
  const filtering = document.getElementById("filter-layers") !== null;
  const scale = () => filters.querySelector("input[name=scale]:checked").value;

  // Rows come as columns; those of hidden layers stay out.
  const unpack = ({ fields, rows }, layers) => {
    const place = filtering ? fields.indexOf("layer") : -1;
    const shown = place < 0 ? rows : rows.filter((row) => row[place] === null || layers.has(row[place]));
    return shown.map((row) => Object.fromEntries(fields.flatMap((name, i) => (row[i] === null ? [] : [[name, row[i]]]))));
  };

  // Panels stand side by side as far as there is room.
  const fitted = (spec, width) => {
    if (!spec.columns) return typeof spec.width === "number" ? { ...spec, width: Math.min(spec.width, width - 150) } : spec;
    return { ...spec, columns: Math.max(1, Math.min(spec.columns, Math.floor(width / (spec.spec.width + 62)))) };
  };

  const drawn = new Map();
  const draw = async (figure) => {
    const chart = report.charts[figure.dataset.chart];
    const target = figure.querySelector(".drawing");
    const layers = chart.one ? new Set([chosenIn(figure)]) : chosenLayers();
    const datasets = Object.fromEntries(Object.entries(chart.data).map(([name, data]) => [name, unpack(data, layers)]));
    const spec = fitted(chart[scale()] || chart.log, figure.clientWidth || 900);
    drawn.get(figure)?.finalize();
    drawn.delete(figure);
    const empty = Object.values(datasets).every((rows) => rows.length === 0);
    target.classList.toggle("empty", empty);
    if (empty) {
      target.replaceChildren();
    } else {
      const options = { actions: false, renderer: "svg", logLevel: 1, defaultStyle: false, config: report.config, tooltip: { disableDefaultStyle: true } };
      drawn.set(figure, await vegaEmbed(target, { ...spec, datasets }, options));
      // The drawing is one picture with a description and a table; its parts say nothing by themselves.
      target.querySelector("svg").setAttribute("aria-hidden", "true");
    }
    figure.dataset.scale = chart.linear ? scale() : "log";
  };

  // One chart after the other; what changes meanwhile joins the queue.
  const queue = new Set();
  let working = null;
  const work = async () => {
    while (queue.size > 0) {
      const [figure] = queue;
      queue.delete(figure);
      await draw(figure);
    }
    working = null;
    return true;
  };
  const redraw = (figures) => {
    for (const figure of figures) queue.add(figure);
    working ??= work();
    window.howsmooth.ready = working;
  };
  const redrawAll = () => redraw(all("figure.chart"));

  const applyFilters = () => {
    const layers = chosenLayers();
    const map = document.getElementById("filter-map")?.value ?? "";
    for (const section of all("section.measurement")) section.hidden = map !== "" && section.dataset.map !== map;
    for (const row of all("tr[data-layer]")) {
      const ladder = row.closest('figure[data-chart$="bounds_ladder"]');
      const shown = ladder ? Number(row.dataset.layer) === chosenIn(row) : !filtering || layers.has(Number(row.dataset.layer));
      row.hidden = !shown || (row.dataset.map !== undefined && map !== "" && row.dataset.map !== map);
    }
    for (const hint of all(".of-layer")) hint.hidden = Number(hint.dataset.layer) !== chosenIn(hint);
    const count = all("#answer-table tbody tr:not([hidden])").length;
    document.getElementById("status").textContent = `${count} rows are shown.`;
  };
  const chosenIn = (element) => Number(element.closest(".measurement").querySelector(".chosen-layer").value);

  const shade = (section) => {
    const tokens = all(".token", section);
    if (tokens.length === 0) return;
    const shares = report.tokens[section.dataset.measurement][chosenIn(section.querySelector(".tokens"))];
    const kind = section.querySelector(".colouring input:checked").value;
    const values = shares ? shares[kind] : tokens.map(() => 0);
    const most = Math.max(...values) || 1;
    // The square root shows the many small shares too.
    tokens.forEach((token, i) => token.style.setProperty("--share", Math.sqrt(values[i] / most).toFixed(4)));
  };

  const tooltip = document.getElementById("tooltip");
  const tell = (token, event) => {
    const section = token.closest(".measurement");
    const shares = report.tokens[section.dataset.measurement][chosenIn(token)];
    const i = all(".token", section).indexOf(token);
    const percent = (value) => `${(100 * value).toPrecision(3)} %`;
    tooltip.textContent = shares
      ? `“${token.textContent}” (token ${i}): ${percent(shares.sensitivity[i])} of the worst perturbation, ${percent(shares.response[i])} of the response`
      : "This layer was not measured at this window.";
    tooltip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
    tooltip.style.left = `${Math.max(8, left)}px`;
    tooltip.style.top = `${Math.min(event.clientY + 18, window.innerHeight - tooltip.offsetHeight - 8)}px`;
  };

  filters.addEventListener("submit", (event) => event.preventDefault());
  const refresh = () => {
    applyFilters();
    redrawAll();
  };
  filters.addEventListener("change", refresh);
  for (const button of all("button[data-layers]")) {
    button.addEventListener("click", () => {
      for (const box of all("input[name=layer]")) box.checked = button.dataset.layers === "all";
      refresh();
    });
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });
  for (const section of all("section.measurement")) {
    section.querySelector(".chosen-layer").addEventListener("change", () => {
      applyFilters();
      shade(section);
      tooltip.hidden = true;
      redraw(all('figure[data-chart$="bounds_ladder"]', section));
    });
    section.querySelector(".colouring")?.addEventListener("change", () => shade(section));
    section.querySelector(".tokens")?.addEventListener("mousemove", (event) => {
      const token = event.target.closest(".token");
      if (token) tell(token, event);
      else tooltip.hidden = true;
    });
    section.querySelector(".tokens")?.addEventListener("mouseleave", () => { tooltip.hidden = true; });
  }
  let width = window.innerWidth;
  let waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redrawAll, 150);
  });

  root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  window.howsmooth = { ready: Promise.resolve(true) };
  all("section.measurement").forEach(shade);
  refresh();
})();
