// What is on the stage: one value; all that is shown follows from it. Places are in units of R, so that R moves none.
const FORMS = {
  "-I": [-1, 0, 0, -1],
  I: [1, 0, 0, 1],
  rotation: [0, -1, 1, 0],
  nilpotent: [0, 1, 0, 0],
  minilm: DATA.minilm.A,
};
const VALUES = { I: [1, 0, 0, 1], "-I": [-1, 0, 0, -1], rotation: [0, -1, 1, 0], line: [1, 0, 0, 0], minilm: DATA.minilm.V };
const MECHANISMS = ["softmax", "l2", "sigmoid"];
const PLACES = ["disk", "circle", "line"];
const REGIMES = ["tokens", "measure"];
const LIMITS = { R: [0.05, 20], n: [2, 1e6], dots: [2, 64], strength: [0, 3], eps: [0, 0.5], mass: [1e-9, 1e9] };
const within = (value, [low, high]) => Math.min(high, Math.max(low, value));

const ORIGINAL = { form: "-I", matrix: null, strength: 1, turn: 0, value: "I", size: 1, mechanism: "softmax", causal: false, regime: "tokens", place: "disk", eps: 0.15, chosen: 0, linked: null, from: null };

const modelOf = (state) => {
  const base = state.matrix ?? FORMS[state.form];
  return {
    x: state.xi.map(([x, y]) => [state.R * x, state.R * y]),
    c: state.c,
    A: scaled(state.strength, product(rotation(state.turn), base)),
    b: state.form === "minilm" && state.matrix === null ? DATA.minilm.b.map((entry) => entry * state.strength) : [0, 0],
    V: scaled(state.size, VALUES[state.value]),
    mechanism: state.mechanism,
    causal: state.causal,
    regime: state.regime,
    R: state.R,
  };
};

// n tokens: the largest crowd takes what the others leave.
const withCount = (state, n) => {
  const crowd = state.c.indexOf(Math.max(...state.c));
  const rest = state.c.reduce((sum, c, i) => (i === crowd ? sum : sum + c), 0);
  return { ...state, c: state.c.map((c, i) => (i === crowd ? Math.max(1, n - rest) : c)) };
};

// More dots, where none is yet; or fewer, the last ones first.
const withDots = (state, dots) => {
  const xi = state.xi.slice(0, dots), c = state.c.slice(0, dots);
  while (xi.length < dots) {
    const k = xi.length;
    xi.push(withinReach(state, polar(2.399963 * k + 0.7, Math.sqrt(((k * 0.618034) % 1) * 0.85 + 0.1))));
    c.push(1);
  }
  return { ...state, xi, c, chosen: Math.min(state.chosen, dots - 1), linked: null, from: null };
};

// A link holds what differs from the scene.
const short = (number) => String(Number(number.toPrecision(6)));
const FIELDS = {
  R: { read: (s, w) => ({ ...s, R: within(Number(w), LIMITS.R) }), write: (s) => short(s.R) },
  A: {
    read: (s, w) => {
      const entries = w.split(",").map(Number);
      return entries.length === 4 ? { ...s, matrix: entries } : { ...s, form: known(w, Object.keys(FORMS)), matrix: null };
    },
    write: (s) => (s.matrix ? s.matrix.map(short).join(",") : s.form),
  },
  strength: { read: (s, w) => ({ ...s, strength: within(Number(w), LIMITS.strength) }), write: (s) => short(s.strength) },
  turn: { read: (s, w) => ({ ...s, turn: within(Number(w), [-180, 180]) }), write: (s) => short(s.turn) },
  V: { read: (s, w) => ({ ...s, value: known(w, Object.keys(VALUES)) }), write: (s) => s.value },
  size: { read: (s, w) => ({ ...s, size: within(Number(w), LIMITS.strength) }), write: (s) => short(s.size) },
  mechanism: { read: (s, w) => ({ ...s, mechanism: known(w, MECHANISMS) }), write: (s) => s.mechanism },
  causal: { read: (s, w) => ({ ...s, causal: known(w, ["yes", "no"]) === "yes" }), write: (s) => (s.causal ? "yes" : "no") },
  regime: { read: (s, w) => ({ ...s, regime: known(w, REGIMES) }), write: (s) => s.regime },
  place: { read: (s, w) => ({ ...s, place: known(w, PLACES) }), write: (s) => s.place },
  eps: { read: (s, w) => ({ ...s, eps: within(Number(w), LIMITS.eps) }), write: (s) => short(s.eps) },
  at: {
    read: (s, w) => {
      const places = w.split(";").slice(0, LIMITS.dots[1]).map((pair) => withinReach(s, pair.split(",").map(Number)));
      const same = places.length === s.c.length;
      return { ...s, xi: places, c: same ? s.c : places.map(() => 1), chosen: Math.min(s.chosen, places.length - 1) };
    },
    write: (s) => s.xi.map((x) => x.map((entry) => short(Number(entry.toFixed(5)))).join(",")).join(";"),
  },
  tokens: {
    read: (s, w) => {
      const c = w.split(";").map((word) => within(Number(word), LIMITS.mass));
      return c.length === s.xi.length ? { ...s, c } : s;
    },
    write: (s) => s.c.map(short).join(";"),
  },
  n: { read: (s, w) => withCount(s, Math.round(within(Number(w), LIMITS.n))), write: () => null },
};
function known(word, words) {
  if (!words.includes(word)) throw new RangeError(`no ${word}`);
  return word;
}

const allNumbers = (value) => (typeof value === "number" ? Number.isFinite(value) : !Array.isArray(value) || value.every(allNumbers));
const readLink = (hash) => {
  const wanted = new URLSearchParams(hash.replace(/^#/, ""));
  const scene = SCENES.find(({ slug }) => slug === wanted.get("scene")) ?? SCENES[0];
  let state = initial(scene);
  for (const [name, { read }] of Object.entries(FIELDS)) {
    if (!wanted.has(name)) continue;
    try {
      const next = read(state, wanted.get(name));
      if (Object.values(next).every(allNumbers)) state = next; // what cannot be read is left as the scene has it
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
    }
  }
  return state;
};
const writeLink = (state) => {
  const scene = SCENES.find(({ slug }) => slug === state.scene), usual = initial(scene);
  const words = [`scene=${scene.slug}`];
  for (const [name, { write }] of Object.entries(FIELDS)) {
    const word = write(state);
    if (word !== null && word !== write(usual)) words.push(`${name}=${word}`);
  }
  return `#${words.join("&")}`;
};
const initial = (scene) => ({ ...ORIGINAL, ...structuredClone(scene.start), scene: scene.slug });
