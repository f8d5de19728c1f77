// Inputs that are worse: explicit ones, refined; and one step uphill at a time from any input.
const withinReach = (state, [x, y]) => {
  const size = Math.hypot(x, y);
  if (state.place === "line") return [Math.max(-1, Math.min(1, x)), 0];
  if (state.place === "circle") return size > 1e-12 ? [x / size, y / size] : [1, 0];
  return size > 1 ? [x / size, y / size] : [x, y];
};

const polar = (angle, radius = 1) => [radius * Math.cos(angle), radius * Math.sin(angle)];

// Two dots that tie for a crowd at (angle, radius), each ``apart`` from where it looks.
const tiedPlaces = (m, [angle, radius, apart]) => {
  const pull = times(m.A, polar(angle, radius * m.R));
  const towards = Math.atan2(pull[1] + m.b[1], pull[0] + m.b[0]);
  return [polar(towards + apart), polar(towards - apart), polar(angle, radius)];
};

// Places to begin with: one token against a crowd, and two that tie for the attention of a crowd.
const explicitInputs = (m, place) => {
  const n = count(m), found = [];
  const crowd = (rest) => (m.regime === "measure" ? [2, 20, 200, 2e3, 2e4, 2e6] : [Math.max(n - rest, 1)]);
  const turns = place === "line" ? 2 : 16;
  for (let k = 0; k < turns; k++) {
    const angle = (2 * Math.PI * k) / turns;
    for (const share of place === "circle" ? [-1] : [-1, -0.5, 0.5]) {
      for (const c of crowd(1)) found.push({ xi: [polar(angle), polar(angle, share)], c: [1, c] });
    }
    if (place === "line" || (m.regime !== "measure" && n < 3)) continue;
    for (const radius of place === "circle" ? [1] : [1, 0.4]) {
      for (const apart of [0.1, 0.3, 0.6, 1, 1.3, Math.PI / 2]) {
        const tied = [angle, radius, apart];
        for (const c of crowd(2)) found.push({ xi: tiedPlaces(m, tied), c: [1, 1, c], tied });
      }
    }
  }
  return found;
};

// Uphill by trying neighbours, with steps that shrink where none is better.
const refined = (start, value, neighbours) => {
  let current = start, step = 0.1;
  for (let round = 0; round < 40 && step > 2e-5; round++) {
    let better = false;
    for (const trial of neighbours(current, step)) {
      const reached = value(trial);
      if (reached > current.value) [current, better] = [{ ...trial, value: reached }, true];
    }
    step *= better ? 1.2 : 0.5;
  }
  return current;
};

const bestKnown = (m, place) => {
  const value = (input) => measured({ ...m, x: input.xi.map(([x, y]) => [m.R * x, m.R * y]), c: input.c }).constant;
  const otherMasses = (input, step) => (m.regime !== "measure" ? [] : [1 + 2 * step, 1 / (1 + 2 * step)].map((factor) => ({
    ...input, c: input.c.map((c, i) => (i === input.c.length - 1 ? c * factor : c)),
  })));
  // a tie is kept while its angles turn: step by step in the plane it would break
  const otherTies = (input, step) => [...[0, 1, 2].flatMap((axis) => [step, -step].map((by) => {
    const tied = input.tied.map((entry, k) => (k === axis ? entry + by : entry));
    tied[1] = place === "circle" ? 1 : Math.min(1, Math.max(0.01, tied[1]));
    return { ...input, tied, xi: tiedPlaces(m, tied) };
  })), ...otherMasses(input, step)];
  const otherPlaces = (input, step) => [...input.xi.flatMap((_, i) => [[step, 0], [-step, 0], [0, step], [0, -step]].map(([dx, dy]) => ({
    ...input, xi: input.xi.map((x, j) => (i === j ? withinReach({ place }, [x[0] + dx, x[1] + dy]) : x)),
  }))), ...otherMasses(input, step)];

  const ranked = explicitInputs(m, place).map((input) => ({ ...input, value: value(input) })).sort((one, other) => other.value - one.value);
  const equal = { xi: [place === "circle" ? [1, 0] : [0, 0]], c: [count(m)] };
  let best = { ...equal, value: value(equal) };
  for (const start of [ranked.find((input) => input.tied), ranked.find((input) => !input.tied)].filter(Boolean)) {
    const turned = start.tied ? refined(start, value, otherTies) : start;
    const found = refined(turned, value, otherPlaces);
    if (found.value > best.value) best = found;
  }
  return best;
};

// The gradient of uᵀJ(X)v in the places, u and v the singular vectors; by central differences of one number.
const slopeAt = (m, found) => {
  const h = 1e-5 * m.R;
  const at = (x) => {
    const moved = { ...m, x };
    const f = attend(moved);
    const J = jacobian(moved, f, moved.x.map((_, i) => ownDerivative(moved, f, i)));
    return dot(found.left, applied(J, found.N, found.right));
  };
  return m.x.map((place, i) => [0, 1].map((axis) => {
    const shifted = (by) => m.x.map((x, j) => (i === j ? x.map((entry, k) => (k === axis ? entry + by : entry)) : x));
    return (at(shifted(h)) - at(shifted(-h))) / (2 * h);
  }));
};

// One step uphill; nothing if there is no way up.
const climbStep = (state, m, found, step) => {
  const slope = slopeAt(m, found);
  const size = Math.hypot(...slope.flat());
  if (!(size > 0)) return null;
  for (let shorter = step; shorter > 1e-5; shorter /= 2) {
    const xi = state.xi.map(([x, y], i) => withinReach(state, [x + (shorter * slope[i][0]) / size, y + (shorter * slope[i][1]) / size]));
    const reached = measured({ ...m, x: xi.map(([x, y]) => [m.R * x, m.R * y]) });
    if (reached.constant > found.constant * (1 + 1e-9)) return { xi, step: Math.min(1.5 * shorter, 0.15) };
  }
  return null;
};

// The mass of the lightest place at which the constant peaks, all else as it is.
const bestMass = (m) => {
  const light = m.c.indexOf(Math.min(...m.c));
  const rest = m.c.reduce((sum, c, i) => (i === light ? sum : sum + c), 0);
  const value = (t) => measured({ ...m, c: m.c.map((c, i) => (i === light ? rest * Math.exp(t) : c)) }).constant;
  const grid = Array.from({ length: 60 }, (_, k) => -30 + 0.5 * k);
  const top = grid.reduce((best, t) => (value(t) > value(best) ? t : best));
  let [low, high] = [top - 0.5, top + 0.5];
  const golden = (Math.sqrt(5) - 1) / 2;
  for (let round = 0; round < 45; round++) {
    const [one, other] = [high - golden * (high - low), low + golden * (high - low)];
    if (value(one) > value(other)) high = other;
    else low = one;
  }
  const t = (low + high) / 2, share = Math.exp(t) / (1 + Math.exp(t));
  return { value: value(t), share, light, count: rest * Math.exp(t) };
};
