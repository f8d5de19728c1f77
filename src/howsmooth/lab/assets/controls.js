// Controls show the state and change it; dots are moved by mouse, by touch and by keys.
const controls = (lab) => {
  const logarithmic = ([low, high]) => ({ to: (value) => Math.log(value / low) / Math.log(high / low), from: (t) => low * (high / low) ** t });
  const [nScale, RScale] = [logarithmic(LIMITS.n), logarithmic(LIMITS.R)];
  const put = (id, value) => { const field = byId(id); if (document.activeElement !== field || field.type === "range") field.value = value; };

  // While a slider moves, the state follows; when it is let go, that is one step for Undo.
  const bind = (id, change) => {
    const field = byId(id);
    const apply = (commit) => {
      const value = field.type === "checkbox" ? field.checked : field.value;
      if (value === "" || (field.type === "number" && !Number.isFinite(Number(value)))) return;
      lab.change((state) => change(state, value), commit);
    };
    if (field.type === "range") field.addEventListener("input", () => apply(false));
    field.addEventListener("change", () => apply(true));
  };
  const tidy = (R) => Number(R.toPrecision(3));
  bind("n-range", (s, t) => withCount(s, Math.round(nScale.from(Number(t)))));
  bind("n", (s, n) => withCount(s, Math.round(within(Number(n), LIMITS.n))));
  for (const id of ["dots", "dots-range"]) bind(id, (s, dots) => withDots(s, Math.round(within(Number(dots), LIMITS.dots))));
  bind("R-range", (s, t) => ({ ...s, R: tidy(RScale.from(Number(t))) }));
  bind("R", (s, R) => ({ ...s, R: within(Number(R), LIMITS.R) }));
  bind("place", (s, place) => ({ ...s, place, xi: s.xi.map((x) => withinReach({ place }, x)) }));
  bind("regime", (s, regime) => ({ ...s, regime, c: regime === "tokens" ? s.c.map((c) => Math.max(1, Math.round(c))) : s.c }));
  bind("mechanism", (s, mechanism) => ({ ...s, mechanism }));
  bind("form", (s, form) => (form === "custom" ? s : { ...s, form, matrix: null, turn: 0 }));
  bind("strength", (s, strength) => ({ ...s, strength: Number(strength) }));
  bind("turn", (s, turn) => ({ ...s, turn: Number(turn) }));
  bind("value", (s, value) => ({ ...s, value }));
  bind("size", (s, size) => ({ ...s, size: Number(size) }));
  bind("causal", (s, causal) => ({ ...s, causal }));
  bind("eps", (s, eps) => ({ ...s, eps: Number(eps) }));
  bind("show-noise", (s) => s);
  bind("x", (s, x) => movedTo(s, s.chosen, [Number(x) / s.R, s.xi[s.chosen][1]]));
  bind("y", (s, y) => movedTo(s, s.chosen, [s.xi[s.chosen][0], Number(y) / s.R]));
  bind("tokens", (s, tokens) => weighing(s, s.chosen, s.regime === "measure" ? massToCount(s, Number(tokens)) : Number(tokens)));

  const press = (id, action) => byId(id).addEventListener("click", action);
  press("previous", () => lab.change((s) => choosing(s, s.chosen - 1), false));
  press("next", () => lab.change((s) => choosing(s, s.chosen + 1), false));
  for (const id of ["cut", "cut-too"]) press(id, () => lab.change((s) => cutting(s, 0.5), true));
  press("crumb", () => lab.change((s) => cutting(s, 1e-6), true));
  press("remove", () => lab.change(removing, true));

  const svg = stage.svg;
  let dragging = null;
  const nearest = (state, [x, y]) => state.xi.reduce((best, at, i) => {
    const distance = Math.hypot(at[0] - x, at[1] - y);
    return distance < best.distance - 1e-9 ? { i, distance } : best;
  }, { i: -1, distance: 0.2 });
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const state = lab.state(), at = stage.pointAt(event);
    // the handle of a small dot reaches over the dot: whoever points at the dot means the dot
    const away = ([x, y]) => Math.hypot(x - at[0], y - at[1]);
    if (event.target.closest(".handle") && away(stage.handleAt(state, state.chosen)) < away(state.xi[state.chosen])) {
      dragging = { i: state.chosen, from: at, c: state.c[state.chosen], mass: true };
    } else {
      // of dots at one place the one that is chosen: halves are pulled apart, not another one fetched
      const near = nearest(state, at), own = Math.hypot(state.xi[state.chosen][0] - at[0], state.xi[state.chosen][1] - at[1]);
      const i = near.i >= 0 && own <= near.distance + 1e-6 ? state.chosen : near.i;
      if (i < 0) return;
      dragging = { i, offset: [state.xi[i][0] - at[0], state.xi[i][1] - at[1]] };
      lab.stop();
      lab.change((s) => choosing(s, i), false);
      stage.focus(i);
    }
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (dragging === null) return;
    const [x, y] = stage.pointAt(event), { i } = dragging;
    dragging.moved = true;
    if (dragging.mass) lab.change((s) => weighing(s, i, dragging.c * 10 ** (4 * (y - dragging.from[1]))), false);
    else lab.change((s) => movedTo(s, i, [x + dragging.offset[0], y + dragging.offset[1]]), false);
  });
  const drop = () => {
    if (dragging?.moved) lab.commit();
    dragging = null;
  };
  svg.addEventListener("pointerup", drop);
  svg.addEventListener("pointercancel", drop);

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const state = lab.state(), step = event.shiftKey ? 0.1 : 0.02;
    const along = ARROWS[event.key];
    if (along) lab.change((s) => movedTo(s, s.chosen, stepped(s, along, step)), true);
    else if (event.key === "n" || event.key === "p") {
      lab.change((s) => choosing(s, s.chosen + (event.key === "n" ? 1 : -1)), false);
      stage.focus(lab.state().chosen);
    } else if (event.key === "+" || event.key === "=") lab.change((s) => weighing(s, s.chosen, s.regime === "tokens" ? Math.max(s.c[s.chosen] * 1.25, s.c[s.chosen] + 1) : s.c[s.chosen] * 1.25), true);
    else if (event.key === "-") lab.change((s) => weighing(s, s.chosen, state.c[state.chosen] / 1.25), true);
    else if (event.key === "x") lab.change((s) => cutting(s, 0.5), true);
    else if (event.key === "u") lab.undo();
    else return;
    event.preventDefault();
  });

  const show = (state, m) => {
    const n = count(m);
    put("n-range", nScale.to(within(n, LIMITS.n)));
    put("n", Math.round(n));
    for (const id of ["dots", "dots-range"]) put(id, state.xi.length);
    put("R-range", RScale.to(state.R));
    put("R", String(Number(state.R.toPrecision(4))));
    for (const id of ["place", "regime", "mechanism", "value", "strength", "turn", "size", "eps"]) put(id, state[id]);
    byId("form").querySelector("[value=custom]").hidden = state.matrix === null;
    byId("form").value = state.matrix === null ? state.form : "custom";
    byId("causal").checked = state.causal;
    byId("strength-value").textContent = shown(state.strength, 3);
    byId("turn-value").textContent = `${state.turn}°`.replace("-", "−");
    byId("size-value").textContent = shown(state.size, 3);
    byId("eps-value").textContent = `${shown(state.eps, 2)} R`;
    const digits = (number) => String(Number(number.toPrecision(4)));
    put("x", digits(m.x[state.chosen][0]));
    put("y", digits(m.x[state.chosen][1]));
    byId("tokens-label").textContent = state.regime === "measure" ? "share of the mass" : "tokens here";
    put("tokens", digits(state.regime === "measure" ? state.c[state.chosen] / n : state.c[state.chosen]));
    byId("which").textContent = `${state.chosen + 1} of ${state.xi.length}${state.labels?.[state.chosen] ? `: “${state.labels[state.chosen]}”` : ""}`;
    const cuttable = state.regime === "measure" || state.c[state.chosen] >= 2;
    for (const id of ["cut", "cut-too", "crumb"]) byId(id).disabled = state.xi.length >= LIMITS.dots[1] || !cuttable || (id === "crumb" && state.regime !== "measure");
    byId("remove").disabled = state.xi.length <= LIMITS.dots[0];
    for (const id of ["n", "n-range"]) byId(id).disabled = state.regime === "measure";
    byId("y").disabled = state.place === "line";
  };
  return { show };
};

// What can be done with dots, as functions from state to state.
const choosing = (state, i) => ({ ...state, chosen: (i + state.xi.length) % state.xi.length });
const movedTo = (state, i, to) => {
  const place = withinReach(state, to), xi = state.xi.map((x, j) => (i === j ? place : x));
  if (state.linked?.includes(i)) {
    // the mean of the two halves stays where it was, or a crumb goes alone
    const [one, other] = state.linked, partner = i === one ? other : one, share = state.c[i] / state.c[partner];
    const home = state.from.xi[one];
    xi[partner] = withinReach(state, home.map((entry, axis) => entry - share * (place[axis] - entry)));
  }
  return { ...state, xi };
};
const stepped = (state, along, step) => {
  const [x, y] = state.xi[state.chosen];
  if (state.place !== "circle") return [x + step * along[0], y + step * along[1]];
  // on the circle left and up go round one way, right and down the other
  return polar(Math.atan2(y, x) + step * (along[0] === -1 || along[1] === 1 ? 1 : -1));
};
const weighing = (state, i, c) => {
  if (!Number.isFinite(c)) return state;
  const wanted = state.regime === "tokens" ? within(Math.round(c), [1, LIMITS.n[1]]) : within(c, LIMITS.mass);
  return { ...state, linked: null, from: null, c: state.c.map((entry, j) => (i === j ? wanted : entry)) };
};
const massToCount = (state, share) => {
  const rest = state.c.reduce((sum, c, i) => (i === state.chosen ? sum : sum + c), 0);
  return (rest * within(share, [1e-9, 1 - 1e-9])) / (1 - within(share, [1e-9, 1 - 1e-9]));
};
const cutting = (state, share) => {
  const i = state.chosen;
  if (state.xi.length >= LIMITS.dots[1] || (state.regime === "tokens" && state.c[i] < 2)) return state;
  const part = state.regime === "tokens" ? Math.floor(state.c[i] * share) : state.c[i] * share;
  const at = (list, ...entries) => [...list.slice(0, i), ...entries, ...list.slice(i + 1)];
  const xi = at(state.xi, state.xi[i], state.xi[i]), c = at(state.c, state.c[i] - part, part);
  const labels = state.labels && at(state.labels, state.labels[i], state.labels[i]);
  // what is chosen is the part that goes: it is pulled away, the other gives way
  return { ...state, xi, c, labels, chosen: i + 1, linked: [i, i + 1], from: { xi, c } };
};
const removing = (state) => {
  if (state.xi.length <= LIMITS.dots[0]) return state;
  const without = (list) => list?.filter((_, i) => i !== state.chosen);
  return { ...state, xi: without(state.xi), c: without(state.c), labels: without(state.labels), chosen: Math.max(0, state.chosen - 1), linked: null, from: null };
};
