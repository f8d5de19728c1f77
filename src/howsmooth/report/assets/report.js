"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const filters = document.getElementById("filters");
  const filtering = document.getElementById("filter-layers") !== null;
  const closers = all(".closer");
  const closerOf = (element) => element.closest(".measurement").querySelector(".closer");
  const closerAt = (place) => document.getElementById(`closer-${place}`);

  // The state: which layers are shown, and which one the reader wants to see more closely in each measurement.
  // All else follows from it: rows, options, charts, shades.
  const wanted = new Map(closers.map((closer) => [closer, layersOf(closer)[0]]));
  const shownLayers = () => new Set(all("input[name=layer]:checked").map((box) => Number(box.value)));
  const shownMap = () => document.getElementById("filter-map")?.value ?? "";
  const scale = () => filters.querySelector("input[name=scale]:checked").value;
  function layersOf(closer) {
    return closer.dataset.layers.split(" ").map(Number);
  }
  // What was wanted, or the least smooth of those that are shown, or none.
  const chosenIn = (closer) => {
    const shown = shownLayers();
    const there = layersOf(closer).filter((layer) => shown.has(layer));
    return there.includes(wanted.get(closer)) ? wanted.get(closer) : there[0] ?? null;
  };

  // Rows come as columns; those of hidden layers stay out.
  const unpack = ({ fields, rows }, layers) => {
    const place = filtering ? fields.indexOf("layer") : -1;
    const shown = place < 0 ? rows : rows.filter((row) => row[place] === null || layers.has(row[place]));
    return shown.map((row) => Object.fromEntries(fields.flatMap((name, i) => (row[i] === null ? [] : [[name, row[i]]]))));
  };

  // A chart takes the width it has: panels stand side by side as far as there is room, few ones are larger, and so are
  // the cells of a small map. Legends of a narrow page are one column.
  const MARGIN = 66, NAMED = 160, LARGER = 3.4, CELL = 110, NARROW = 500;
  const distinct = (datasets, name) => new Set(Object.values(datasets).flat().map((row) => row[name])).size;
  const fitted = (spec, datasets, width) => {
    const found = width < NARROW ? narrowed(spec, width) : spec;
    if (found.columns) {
      const { spec: panel, facet } = found;
      // half of the last number of an axis stands beyond its end, where a narrow page ends too
      const margin = (typeof panel.height === "number" ? MARGIN : NAMED) + (width < NARROW ? 14 : 0);
      const fitting = Math.floor(width / (panel.width + margin));
      const columns = Math.max(1, Math.min(found.columns, fitting, distinct(datasets, "panel")));
      const square = panel.width === panel.height;
      const larger = Math.max(margin >= NAMED ? 0.3 : 0.5, Math.min(square ? 1.4 : LARGER, (width / columns - margin) / panel.width));
      const taller = square ? larger : Math.min(1.5, Math.max(1, larger));
      const size = { width: panel.width * larger, height: typeof panel.height === "number" ? panel.height * taller : panel.height };
      return { ...found, columns, spec: { ...panel, ...size }, facet: { ...facet, header: { ...facet.header, labelLimit: size.width + 25 } } };
    }
    if (found.width?.step) {
      const columns = distinct(datasets, "column");
      return { ...found, width: { step: Math.max(found.width.step, Math.min(CELL, Math.floor((width - MARGIN) / columns))) } };
    }
    if (typeof found.width !== "number") return found;
    // a plane stays square; names stand left of what has as many rows as it needs
    if (typeof found.height === "number") return { ...found, width: Math.min(found.width, width - 100), height: Math.min(found.height, width - 100) };
    return { ...found, width: Math.max(140, Math.min(LARGER * found.width, width - 250)) };
  };
  const narrowed = (part, width) => {
    if (Array.isArray(part)) return part.map((each) => narrowed(each, width));
    if (part === null || typeof part !== "object") return part;
    const found = Object.fromEntries(Object.entries(part).map(([name, each]) => [name, narrowed(each, width)]));
    // there is room for a value, and not for its interval
    if (found.text?.field === "number") found.text = { value: { expr: "split(datum.number, ' [')[0]" } };
    // a scale of colours lies above the panels, where there is room for it
    if (found.legend && found.type === "quantitative") return { ...found, legend: { ...found.legend, orient: "top", direction: "horizontal", gradientLength: 160 } };
    if (!found.legend?.columns) return found;
    // a legend below stands under the names, too, which take more of the width than the axis
    const below = found.legend.orient === "bottom" ? { orient: "none", legendX: -190, legendY: { expr: "height + 45" } } : {};
    return { ...found, legend: { ...found.legend, columns: 1, labelLimit: width - 60, ...below } };
  };

  const isOfOneLayer = (element) => element.closest(".one-layer") !== null && element.closest(".measurement") !== null;
  const layersFor = (element) => {
    if (!isOfOneLayer(element)) return shownLayers();
    const chosen = chosenIn(closerOf(element));
    return new Set(chosen === null ? [] : [chosen]);
  };

  const drawn = new Map();
  const draw = async (figure) => {
    const chart = report.charts[figure.dataset.chart];
    const target = figure.querySelector(".drawing");
    const layers = layersFor(figure);
    const datasets = Object.fromEntries(Object.entries(chart.data).map(([name, data]) => [name, unpack(data, layers)]));
    const spec = fitted(chart[scale()] || chart.log, datasets, figure.clientWidth || 900);
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
      // what is wider than the page can be scrolled, by keys too
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
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

  const applyRows = () => {
    const layers = shownLayers();
    const map = shownMap();
    for (const section of all("section.measurement")) section.hidden = map !== "" && section.dataset.map !== map;
    for (const row of all("tr[data-layer], tbody[data-layer]")) {
      const shown = !filtering || layersFor(row).has(Number(row.dataset.layer));
      row.hidden = !shown || (row.dataset.map !== undefined && map !== "" && row.dataset.map !== map);
    }
    const count = all("#answer-table tbody[data-layer]:not([hidden])").length;
    const none = document.getElementById("no-layer");
    if (none) none.hidden = count > 0;
    document.getElementById("status").textContent = !filtering
      ? "" : count > 0 ? `${layers.size} layers are shown.` : "No layer is chosen.";
  };

  const applyChoice = (closer) => {
    const shown = shownLayers();
    const chosen = chosenIn(closer);
    const select = closer.querySelector(".chosen-layer");
    for (const option of select.options) option.disabled = option.value === "" || !shown.has(Number(option.value));
    select.value = chosen === null ? "" : String(chosen);
    closer.querySelector(".nothing").hidden = chosen !== null;
    closer.querySelector(".chosen").hidden = chosen === null;
    for (const hint of all(".of-layer", closer)) hint.hidden = Number(hint.dataset.layer) !== chosen;
    const place = closer.closest(".measurement").dataset.section;
    for (const row of all(`#answer-table tbody[data-section="${place}"]`)) {
      const pressed = Number(row.dataset.layer) === chosen;
      row.classList.toggle("chosen", pressed);
      row.querySelector(".choose").setAttribute("aria-pressed", String(pressed));
    }
    shade(closer);
  };

  const shade = (closer) => {
    const tokens = all(".token", closer);
    if (tokens.length === 0) return;
    const shares = report.tokens[closer.closest(".measurement").dataset.section][chosenIn(closer)];
    const kind = closer.querySelector(".colouring input:checked").value;
    const values = shares ? shares[kind] : tokens.map(() => 0);
    const most = Math.max(...values) || 1;
    // The square root shows the many small shares too.
    tokens.forEach((token, i) => token.style.setProperty("--share", Math.sqrt(values[i] / most).toFixed(4)));
  };

  const tooltip = document.getElementById("tooltip");
  const refresh = (figures = all("figure.chart")) => {
    applyRows();
    closers.forEach(applyChoice);
    tooltip.hidden = true;
    redraw(figures);
  };
  const choose = (closer, layer) => {
    wanted.set(closer, layer);
    refresh(all(".one-layer", closer));
    document.getElementById("status").textContent = `Layer ${layer} is shown more closely below.`;
  };

  const tell = (token, event) => {
    const closer = closerOf(token);
    const shares = report.tokens[closer.closest(".measurement").dataset.section][chosenIn(closer)];
    const i = all(".token", closer).indexOf(token);
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
  filters.addEventListener("change", (event) => {
    const shown = shownLayers();
    // to filter down to one layer is to choose it
    if (event.target.name === "layer" && shown.size === 1) for (const closer of closers) {
      if (layersOf(closer).includes([...shown][0])) wanted.set(closer, [...shown][0]);
    }
    refresh();
  });
  for (const button of all("button[data-layers]")) {
    button.addEventListener("click", () => {
      for (const box of all("input[name=layer]")) box.checked = button.dataset.layers === "all";
      refresh();
    });
  }
  // A click anywhere in a row will do; the button in it is for the keyboard, and for those who do not see the row.
  for (const row of all("#answer-table tbody[data-section]")) {
    row.addEventListener("click", () => choose(closerAt(row.dataset.section), Number(row.dataset.layer)));
  }
  for (const closer of closers) {
    closer.querySelector(".chosen-layer").addEventListener("change", (event) => choose(closer, Number(event.target.value)));
    closer.querySelector(".colouring")?.addEventListener("change", () => shade(closer));
    closer.querySelector(".tokens")?.addEventListener("mousemove", (event) => {
      const token = event.target.closest(".token");
      if (token) tell(token, event);
      else tooltip.hidden = true;
    });
    closer.querySelector(".tokens")?.addEventListener("mouseleave", () => { tooltip.hidden = true; });
  }

  // On paper nothing can be unfolded, so all tables are; those that were folded fold again.
  let folded = [];
  const unfold = (paper) => {
    if (paper && folded.length === 0) folded = all("details:not([open])");
    for (const details of folded) details.open = paper;
    if (!paper) folded = [];
  };
  window.addEventListener("beforeprint", () => unfold(true));
  window.addEventListener("afterprint", () => unfold(false));
  window.matchMedia("print").addEventListener("change", (event) => unfold(event.matches));

  let width = window.innerWidth;
  let waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(all("figure.chart")), 150);
  });

  window.howsmooth = { ready: Promise.resolve(true) };
  refresh();
})();
