// The stage: the disk in units of R, so that nothing on it rescales while a dot is dragged. R is so long:
const UNIT = 250;
const stage = (() => {
  const svg = byId("stage"), layer = (name) => svg.querySelector(`.${name}`);
  const path = (kind) => () => shape("path", { class: kind });
  const rings = pool(layer("rings"), () => { const g = shape("g"); g.append(shape("circle", { class: "ring" }), shape("text", { class: "ring-label" })); return g; });
  const lines = pool(layer("attention"), () => shape("line", { class: "attending" }));
  const inputs = pool(layer("inputs"), path("worst-arrow"));
  const noise = pool(layer("noise"), path("noise-arrow"));
  const predicted = pool(layer("predicted"), path("predicted-arrow"));
  const truth = pool(layer("truth"), path("true-path"));
  const outputs = pool(layer("outputs"), () => shape("rect", { class: "output" }));
  const targets = pool(layer("targets"), () => shape("circle", { class: "target" }));
  const dots = pool(layer("dots"), () => {
    const g = shape("g", { class: "dot", role: "button", "aria-roledescription": "dot that can be moved" });
    g.append(shape("circle", { class: "halo" }), shape("circle", { class: "body" }), shape("text", { class: "dot-label" }), shape("line", { class: "leader" }));
    return g;
  });
  const handle = layer("handle");

  const flip = ([x, y]) => [UNIT * x, -UNIT * y];
  // many dots are small dots, and so are words
  let small = 1;
  const sizeOf = (c) => small * Math.min(0.115, 0.034 + 0.014 * Math.max(0, Math.log10(c) + 0.5));
  const pointAt = (event) => {
    const box = svg.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * 2.4 - 1.2, -(((event.clientY - box.top) / box.height) * 2.4 - 1.2)];
  };
  const handleAt = (state, i) => { const r = sizeOf(state.c[i]) + 0.05; return [state.xi[i][0] + 0.71 * r, state.xi[i][1] + 0.71 * r]; };

  // Masses count as tokens, the lightest dot as one token at least: a push has a size that can be seen.
  const tokens = (state) => { const unit = Math.min(1, ...state.c); return state.c.map((c) => c / unit); };

  // A typical token of a random perturbation of the same size, and where its output goes.
  const gauss = (() => {
    let seed = 20;
    const uniform = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
    return Array.from({ length: 128 }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
  })();
  const randomMove = (state, found) => {
    const c = tokens(state), n = c.reduce((sum, one) => sum + one, 0);
    const each = state.xi.map((_, i) => [gauss[2 * i], gauss[2 * i + 1]].map((g) => (state.eps * g) / Math.sqrt(2 * n)));
    // crowds move by their mean, which is smaller; what a token has beyond it sees the token's own derivative alone
    const mean = each.map((move, i) => move.map((part) => part / Math.sqrt(c[i])));
    const together = applied(found.J, found.N, mean.flatMap((move, i) => move.map((part) => part * Math.sqrt(c[i]))));
    const response = each.map((move, i) => {
      const own = times(found.own[i], [move[0] - mean[i][0], move[1] - mean[i][1]]);
      return [0, 1].map((axis) => together[2 * i + axis] / Math.sqrt(c[i]) + own[axis]);
    });
    return { moves: each, response };
  };

  // The worst perturbation of size ε R: what each token moves by, and what its output is predicted to move by.
  const worstMove = (state, found) => {
    const c = tokens(state);
    if (!found.parts) {
      const per = (vector, i, factor) => [0, 1].map((axis) => (factor * vector[2 * i + axis]) / Math.sqrt(c[i]));
      return state.xi.map((_, i) => ({ i, move: per(found.right, i, state.eps), response: per(found.left, i, state.eps * found.move) }));
    }
    const w = topDirection(found.own[found.atom]).map((part) => (state.eps * part) / Math.sqrt(c[found.atom]));
    return [1, -1].map((sign) => ({ i: found.atom, move: w.map((part) => sign * part), response: times(found.own[found.atom], w).map((part) => sign * part) }));
  };
  const truePaths = (state, m, found, moves) => {
    const xi = state.xi.map((x) => x), c = [...state.c];
    let index = moves.map(({ i }) => i);
    if (found.parts) {
      const [i] = index;
      xi.splice(i + 1, 0, xi[i]);
      c.splice(i, 1, c[i] / 2, c[i] / 2);
      index = [i, i + 1];
    }
    const steps = xi.length > 12 ? 8 : 14, paths = moves.map(() => []);
    for (let k = 0; k <= steps; k++) {
      const x = xi.map(([a, b]) => [m.R * a, m.R * b]);
      moves.forEach(({ move }, at) => { x[index[at]] = x[index[at]].map((entry, axis) => entry + ((m.R * k) / steps) * move[axis]); });
      const out = attend({ ...m, x, c }).outputs;
      paths.forEach((points, at) => points.push(out[index[at]].map((entry) => entry / m.R)));
    }
    return paths;
  };

  // Words that lie close together are written on a ring around them, in the order of their directions, each with a line.
  const labelsApart = ({ labels, xi }) => {
    if (!labels || Math.max(...xi.map(length)) > 0.3) return null;
    const mean = [0, 1].map((axis) => xi.reduce((sum, x) => sum + x[axis], 0) / xi.length);
    const angle = (i) => Math.atan2(-(xi[i][1] - mean[1]), xi[i][0] - mean[0]);
    const order = xi.map((_, i) => i).sort((i, j) => angle(i) - angle(j)), first = angle(order[0]);
    const found = [];
    order.forEach((i, k) => {
      const turn = first + (2 * Math.PI * k) / xi.length;
      found[i] = [0.58 * UNIT * Math.cos(turn), 0.5 * UNIT * Math.sin(turn)];
    });
    return found;
  };

  const draw = (state, m, found) => {
    small = state.xi.length > 12 || state.labels ? 0.5 : 1;
    const step = [0.25, 0.5, 1, 2, 5].find((size) => state.R / size <= 6) ?? 10;
    const radii = Array.from({ length: Math.floor(state.R / step + 1e-9) }, (_, k) => (k + 1) * step).filter((r) => r < 0.94 * state.R);
    rings(radii, (g, r) => {
      g.firstChild.setAttribute("r", fixed((UNIT * r) / state.R));
      g.lastChild.setAttribute("x", 4);
      g.lastChild.setAttribute("y", fixed((-UNIT * r) / state.R - 3));
      g.lastChild.textContent = shown(r, 3);
    });
    svg.classList.toggle("on-circle", state.place === "circle");
    svg.classList.toggle("on-line", state.place === "line");
    layer("rim-label").textContent = `R = ${shown(state.R, 3)}`;

    const from = flip(state.xi[state.chosen]), row = [...found.f.weights.slice(state.chosen * found.f.size, (state.chosen + 1) * found.f.size)];
    const total = Math.max(row.reduce((sum, w) => sum + w, 0), 1e-300);
    lines(row, (line, w, j) => {
      const [u, v] = flip(state.xi[j]), share = w / total;
      for (const [key, value] of Object.entries({ x1: from[0], y1: from[1], x2: u, y2: v })) line.setAttribute(key, fixed(value));
      line.setAttribute("stroke-width", fixed(0.075 * UNIT * share));
      line.setAttribute("opacity", share < 0.004 ? 0 : fixed(0.3 + 0.4 * share));
    });

    const moves = worstMove(state, found);
    const place = (i, by = [0, 0]) => flip([state.xi[i][0] + by[0], state.xi[i][1] + by[1]]);
    const outAt = (i, by = [0, 0]) => flip([found.f.outputs[i][0] / m.R + by[0], found.f.outputs[i][1] / m.R + by[1]]);
    inputs(moves, (element, { i, move }) => element.setAttribute("d", arrow(place(i), place(i, move), 15)));
    predicted(moves, (element, { i, response }) => element.setAttribute("d", arrow(outAt(i), outAt(i, response), 15)));
    truth(truePaths(state, m, found, moves), (element, points) => element.setAttribute("d", `M${points.map((p) => flip(p).map(fixed).join(" ")).join("L")}`));
    outputs(found.f.outputs, (element, _, i) => {
      const [x, y] = outAt(i), half = UNIT * (sizeOf(state.c[i]) + 0.014 * small);
      for (const [key, value] of Object.entries({ x: x - half, y: y - half, width: 2 * half, height: 2 * half })) element.setAttribute(key, fixed(value));
      element.classList.toggle("chosen", i === state.chosen);
    });
    const random = byId("show-noise").checked ? randomMove(state, found) : null;
    noise(random === null ? [] : [...random.moves.map((move, i) => [place(i), place(i, move)]), ...random.response.map((by, i) => [outAt(i), outAt(i, by)])],
      (element, [a, b]) => element.setAttribute("d", arrow(a, b, 9)));

    const apart = labelsApart(state);
    targets(state.xi, (element, x) => { const [u, v] = flip(x); element.setAttribute("cx", fixed(u)); element.setAttribute("cy", fixed(v)); });
    dots(state.xi, (g, x, i) => {
      const [u, v] = flip(x), chosen = i === state.chosen, label = state.labels?.[i];
      for (const circle of [g.children[0], g.children[1]]) { circle.setAttribute("cx", fixed(u)); circle.setAttribute("cy", fixed(v)); }
      g.children[0].setAttribute("r", fixed(UNIT * (sizeOf(state.c[i]) + 0.025)));
      g.children[1].setAttribute("r", fixed(UNIT * sizeOf(state.c[i])));
      const name = label ?? (state.c[i] === 1 && state.regime === "tokens" ? "" : tokensAt(state, i, true));
      const hidden = (label !== undefined && state.xi.length >= 12) || state.linked?.includes(i); // too near to others
      g.children[2].textContent = chosen || !hidden ? name : "";
      // at the rim words lean inwards
      const edge = Math.abs(x[0]) > 0.75, [lx, ly] = apart?.[i] ?? [edge ? 1.17 * UNIT * Math.sign(u) : u, v + UNIT * (sizeOf(state.c[i]) + 0.075)];
      g.children[2].setAttribute("text-anchor", !edge ? "middle" : x[0] < 0 ? "start" : "end");
      g.children[2].setAttribute("x", fixed(lx));
      g.children[2].setAttribute("y", fixed(apart ? ly + 5 : ly));
      g.children[3].toggleAttribute("hidden", !apart);
      if (apart) for (const [key, value] of Object.entries({ x1: u, y1: v, x2: 0.87 * lx, y2: 0.87 * ly })) g.children[3].setAttribute(key, fixed(value));
      g.classList.toggle("chosen", chosen);
      g.setAttribute("tabindex", chosen ? 0 : -1);
      g.setAttribute("aria-pressed", chosen);
      g.setAttribute("aria-label", `Dot ${i + 1} of ${state.xi.length}${label ? ` “${label}”` : ""}: ${tokensAt(state, i)} at ${shown(m.x[i][0], 3)}, ${shown(m.x[i][1], 3)}`);
    });
    const [hx, hy] = flip(handleAt(state, state.chosen));
    handle.setAttribute("transform", `translate(${fixed(hx)} ${fixed(hy)})`);
  };

  return { svg, draw, pointAt, handleAt, focus: (i) => layer("dots").children[i]?.focus({ preventScroll: true }) };
})();

const tokensAt = (state, i, brief = false) => {
  if (state.regime !== "measure") return plural(Math.round(state.c[i]), "token");
  const rest = state.c.reduce((sum, c, j) => (i === j ? sum : sum + c), 0), n = rest + state.c[i];
  const share = rest / n < 1e-3 ? `1 − ${shown(rest / n, 3)}` : shown(state.c[i] / n, 3);
  return brief ? `mass ${share}` : `${share} of the mass`;
};
