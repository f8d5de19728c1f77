// The number, its history, the two lanes and the chart of the scene.
const readout = (() => {
  const AXIS = { low: 0.1, high: 1e6, log: true };
  const at = scaleOf(AXIS, 14, 406);
  const trail = [];
  const SECONDS = 10;

  const history = (now, value) => {
    trail.push([now, value]);
    while (trail.length > 0 && now - trail[0][0] > SECONDS * 1000) trail.shift();
    // the axis is as high as what was seen needs, and a jump is an upright line
    const seen = trail.map(([, v]) => Math.max(v, 1e-9)), middle = Math.sqrt(Math.min(...seen) * Math.max(...seen));
    const half = Math.max(2, Math.sqrt(Math.max(...seen) / Math.min(...seen)) * 1.1);
    const y = scaleOf({ low: middle / half, high: middle * half, log: true }, 44, 4);
    const x = (t) => fixed(300 - ((now - t) / (SECONDS * 1000)) * 296);
    byId("history-line").setAttribute("d", trail.map(([t, v], i) => `${i === 0 ? `M${x(t)} ` : `H${x(t)}V`}${fixed(y(Math.max(v, 1e-9)))}`).join(""));
    byId("history-now").setAttribute("cy", fixed(y(Math.max(value, 1e-9))));
  };

  const MARKS = [
    { key: "typical", lane: 0, name: "typical direction" },
    { key: "worst", lane: 0, name: "worst direction" },
    { key: "cut", lane: 0, name: "cut a dot first" },
    { key: "known", lane: 1, name: "best known input", side: -1 },
    { key: "bound", lane: 1, name: "worst-case bound", side: 1 },
    { key: "paper", lane: 1, name: "the paper’s bound", side: 1 },
  ];
  const lanes = byId("lanes");
  for (const tick of ticksOf({ ...AXIS, high: 1e6 })) {
    lanes.querySelector(".ticks").append(shape("line", { x1: at(tick), x2: at(tick), y1: 6, y2: 98, class: tick === 1 ? "one" : "tick" }), shape("text", { x: at(tick), y: 113, class: "tick-label" }, tickText(tick)));
  }
  const SHAPES = {
    typical: () => shape("circle", { r: 5.5 }),
    worst: () => shape("circle", { r: 7 }),
    cut: () => shape("path", { d: "M0 -8L8 0L0 8L-8 0Z" }),
    known: () => shape("path", { d: "M0 -8L8 7L-8 7Z" }),
    bound: () => shape("rect", { x: -3, y: -13, width: 6, height: 26 }),
    paper: () => shape("rect", { x: -3, y: -13, width: 6, height: 26 }),
  };
  const marks = Object.fromEntries(MARKS.map(({ key }) => {
    const g = shape("g", { class: `mark ${key}` });
    g.append(SHAPES[key](), shape("text", { class: "beyond", x: key === "paper" ? -22 : -8, y: 5 }, key === "paper" ? "" : "→"));
    lanes.append(g);
    return [key, g];
  }));
  const laneNumbers = (values) => {
    for (const { key, lane, side } of MARKS) {
      const value = values[key], there = value !== null && value > 0;
      marks[key].toggleAttribute("hidden", !there);
      byId(`value-${key}`).textContent = value === null && lane === 1 && key !== "known" ? "none here" : shown(value, key === "worst" ? 4 : 3, side);
      byId(`row-${key}`).hidden = key === "cut" && value === null;
      if (there) {
        marks[key].setAttribute("transform", `translate(${fixed(value > AXIS.high ? (key === "paper" ? 412 : 400) : Math.max(at(value), 14))} ${lane === 0 ? 30 : 76})`);
        marks[key].classList.toggle("far", value > AXIS.high);
      }
    }
  };

  // The chart: axes of the scene, its lines, and where the state has been.
  const chart = byId("chart"), part = (name) => chart.querySelector(`.${name}`);
  const chartLines = pool(part("lines"), () => shape("path"));
  const visited = pool(part("trail"), () => shape("circle", { r: 2.5 }));
  const BOX = { left: 52, right: 410, top: 14, bottom: 226 };
  let spec = null, been = [], beenAt = null;
  let highest = 0;
  const scales = () => [scaleOf(spec.x, BOX.left, BOX.right), scaleOf({ ...spec.y, high: highest }, BOX.bottom, BOX.top)];
  // The chart ends above its largest value: at a power of ten, or at a whole number; never lower than it began.
  const heighten = (value) => {
    if (!(value > highest) || !Number.isFinite(value)) return;
    highest = spec.y.log ? 10 ** Math.min(12, Math.ceil(Math.log10(value) + 1e-9)) : Math.ceil(1.1 * value);
    been = [];
    drawAxes();
  };
  const axes = (scene) => {
    spec = scene.chart;
    drawnFor = "";
    been = [];
    highest = spec.y.high;
    drawAxes();
    byId("chart-title").textContent = spec.title;
    byId("chart-key").replaceChildren(...spec.lines.map(({ name, kind }) => {
      const item = document.createElement("li");
      item.className = kind;
      item.textContent = name;
      return item;
    }));
  };
  const drawAxes = () => {
    const [x, y] = scales(), axis = part("axes");
    axis.replaceChildren();
    for (const tick of ticksOf(spec.x)) axis.append(shape("line", { x1: x(tick), x2: x(tick), y1: BOX.top, y2: BOX.bottom, class: "tick" }), shape("text", { x: x(tick), y: 243, class: "tick-label" }, tickText(tick)));
    for (const tick of ticksOf({ ...spec.y, high: highest })) axis.append(shape("line", { x1: BOX.left, x2: BOX.right, y1: y(tick), y2: y(tick), class: "tick" }), shape("text", { x: BOX.left - 6, y: y(tick) + 4, class: "tick-label left" }, tickText(tick)));
    axis.append(shape("text", { x: (BOX.left + BOX.right) / 2, y: 261, class: "axis-label" }, spec.x.label));
  };
  // Lines stay while nothing changes that they depend on.
  let drawnFor = "";
  const curves = (state) => {
    const without = Object.fromEntries((spec.ignores ?? []).map((field) => [field, null]));
    const key = JSON.stringify({ ...state, eps: 0, ...without });
    if (key === drawnFor) return;
    drawnFor = key;
    const lines = spec.lines.map(({ kind, points }) => ({ kind, found: points(state).filter(([, v]) => v !== null && Number.isFinite(v)) }));
    heighten(Math.max(...lines.flatMap(({ found }) => found.map(([, v]) => v))));
    const [x, y] = scales();
    chartLines(lines, (element, { kind, found }) => {
      element.setAttribute("class", `curve ${kind}`);
      element.setAttribute("d", found.length > 1 ? `M${found.map(([u, v]) => `${fixed(x(u))} ${fixed(y(v))}`).join("L")}` : "");
    });
  };
  const point = (state, found) => {
    const [u, v] = spec.at(state, found);
    if (v > highest) {
      heighten(v);
      drawnFor = ""; // the lines lie lower now
      curves(state);
    }
    const [x, y] = scales();
    // where the state was at another radius is beside other lines
    const radius = spec.ignores?.includes("R") ? null : state.R;
    if (radius !== beenAt) been = [];
    beenAt = radius;
    been.push([x(u), y(v)]);
    been = been.slice(-160);
    visited(been.slice(0, -1), (element, [cx, cy], i) => {
      element.setAttribute("cx", fixed(cx));
      element.setAttribute("cy", fixed(cy));
      element.setAttribute("opacity", fixed(0.1 + (0.5 * i) / been.length));
    });
    part("now").setAttribute("cx", fixed(x(u)));
    part("now").setAttribute("cy", fixed(y(v)));
    chart.setAttribute("aria-label", `${spec.title}: now ${shown(v, 4)} where ${spec.x.label} is ${shown(u, 4)}.`);
  };

  return { history, laneNumbers, axes, curves, point };
})();
