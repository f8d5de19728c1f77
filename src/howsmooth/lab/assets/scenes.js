// Seven scenes: a start, one sentence, one thing to try, what Play does, and one chart.
const spaced = (low, high, steps, log = true) => Array.from({ length: steps }, (_, k) => {
  const t = k / (steps - 1);
  return log ? low * (high / low) ** t : low + (high - low) * t;
});
const between = (low, high, t) => low * (high / low) ** t;
const constantOf = (state) => measured(modelOf(state)).constant;
const overRadius = (low, high, steps = 40) => (state) => spaced(low, high, steps).map((R) => [R, constantOf({ ...state, R })]);
const worstOverRadius = (low, high) => (state) => spaced(low, high, 30).map((R) => [R, bounds(modelOf({ ...state, R })).worst]);
const angleOf = ([x, y]) => ((Math.atan2(y, x) * 180) / Math.PI + 360) % 360;

const text = DATA.minilm;
// Of all words a few that lie apart: more of them could not be read.
const FEW = [0, 3, 5, 6, 7, 12, 14, 16, 18, 21];
const words = FEW.map((i) => text.shadows[i].map((part) => part / text.radius));
const worst = text.pair.map(([x, y]) => [x / text.radius, y / text.radius]);
// From the text to the worst pair: the first two words part, all others gather.
const onTheWay = (t) => words.map((word, i) => {
  const goal = worst[Math.min(i, 2)];
  return withinReach({ place: "disk" }, [word[0] + t * (goal[0] - word[0]), word[1] + t * (goal[1] - word[1])]);
});
const reach = (xi) => Math.max(...xi.map(length));

const SCENES = [
  {
    slug: "crowd",
    name: "A crowd",
    sentence: "Here every dot looks at the dot most opposite to it. All tokens of the crowd look at one dot and copy it, so a small move of that dot moves n outputs at once: about √n times the move.",
    task: "Make n larger. Then drag the crowd slowly up along the rim: where it is as far from one dot as from the other, the number shoots up.",
    start: { R: 4, xi: [polar(2.53), polar(4.28), [0.9, 0]], c: [1, 1, 62], chosen: 2 },
    play: (state, t) => withCount(state, Math.round(between(8, 1e6, t))) /* fewer, and no dot is the crowd */,
    chart: {
      title: "The constant against the number of tokens",
      x: { label: "tokens n", low: 2, high: 1e6, log: true },
      y: { label: "constant", low: 0.5, high: 1e5, log: true },
      at: (state, found) => [found.n, found.constant],
      lines: [
        { name: "these places", kind: "own", points: (state) => spaced(state.xi.length, 1e6, 40).map((n) => [n, constantOf(withCount(state, n))]) },
        { name: "√n", kind: "guide", points: () => [[2, Math.SQRT2], [1e6, 1e3]] },
        { name: "worst-case bound", kind: "bound", points: (state) => spaced(state.xi.length, 1e6, 20).map((n) => [n, bounds(modelOf(withCount(state, n))).worst]) },
      ],
    },
  },
  {
    slug: "tied-pair",
    name: "The tied pair",
    sentence: "A crowd that cannot decide between two dots jumps from one to the other at a touch: here the constant grows like R², the fastest there is for n tokens.",
    task: "Double R and watch the number grow fourfold. Then drag one dot of the pair a little sideways: the crowd prefers one of them, the tie is broken, the number falls.",
    start: { R: 3, xi: [[0, 1], [0, -1], [1, 0]], c: [1, 1, 62], chosen: 2 },
    play: (state, t) => ({ ...state, R: between(0.5, 8, t) }),
    chart: {
      title: "The constant against the radius",
      x: { label: "radius R", low: 0.5, high: 8, log: true },
      y: { label: "constant", low: 0.5, high: 1e4, log: true },
      ignores: ["R", "chosen"],
      at: (state, found) => [state.R, found.constant],
      lines: [
        { name: "these places", kind: "own", points: overRadius(0.5, 8) },
        { name: "√n", kind: "guide", points: (state) => { const root = Math.sqrt(count(modelOf(state))); return [[0.5, root], [8, root]]; } },
        { name: "worst-case bound", kind: "bound", points: worstOverRadius(0.5, 8) },
      ],
    },
  },
  {
    slug: "mean-field",
    name: "Without end",
    sentence: "With as many tokens as one likes, a dot that holds a tiny share of them (its mass) can steer all the others: the constant grows exponentially with R², and so does the number of tokens it takes.",
    task: "Press Play: R grows, and the light dot on the left gets the share that makes the number largest. Then pull its ⊕ up and down: more and less both make it smaller.",
    start: { R: 1, xi: [[-1, 0], [1, 0]], c: [1, 20], regime: "measure", chosen: 0 },
    play: (state, t) => {
      const grown = { ...state, R: 0.5 + 2.1 * t };
      const { light, count: c } = bestMass(modelOf(grown));
      return { ...grown, c: grown.c.map((mass, i) => (i === light ? c : mass)) };
    },
    note: (state) => {
      const m = modelOf(state);
      if (m.x.length !== 2 || m.mechanism !== "softmax") return "";
      const peak = bestMass(m), needed = Math.exp(2 * steepness(m.A) * m.R ** 2);
      return `At this R the peak is ${shown(peak.value, 5)}, where the light dot holds ${shown(peak.share, 3)} of all tokens: one of ${shown(1 / peak.share, 4)}. It takes about ${shown(needed, 4)} tokens before this shows.`;
    },
    chart: {
      title: "The constant against the radius",
      x: { label: "radius R", low: 0, high: 3, log: false },
      y: { label: "constant", low: 0.5, high: 1e6, log: true },
      ignores: ["R", "c", "chosen"],
      at: (state, found) => [state.R, found.constant],
      lines: [
        { name: "best mass", kind: "own", points: (state) => spaced(0.3, 3, 16, false).map((R) => [R, bestMass(modelOf({ ...state, R })).value]) },
        { name: "1 of 64", kind: "guide", points: (state) => spaced(0.3, 3, 24, false).map((R) => [R, constantOf({ ...state, R, c: state.c.map((_, i) => (i === 0 ? 1 : 63 / (state.c.length - 1))) })]) },
        { name: "worst-case bound", kind: "bound", points: (state) => spaced(0.05, 3, 20, false).map((R) => [R, bounds(modelOf({ ...state, R })).worst]) },
      ],
    },
  },
  {
    slug: "splitting",
    name: "Cut a dot",
    sentence: "Two halves of one dot, pulled apart, can move the output further than any move of whole dots: near the centre it pays to split a dot.",
    task: "Press Cut: the dot near the middle falls into two halves. Pull one of them, and the other goes the opposite way.",
    start: { R: 6, xi: [[-5.3 / 6, 0], [-0.5 / 6, 0]], c: [1, 1], regime: "measure", place: "line", value: "line", eps: 0.05, chosen: 1 },
    play: (state, t) => ({ ...state, linked: null, from: null, xi: state.xi.map((x, i) => (i === 1 ? [-0.8 + 1.6 * t, 0] : x)) }),
    more: { label: "A second example, where dots look at dots like themselves", link: "#scene=splitting&A=I&at=-0.833333,0;0.833333,0" },
    moreTask: "choose the right dot, press “Cut off a crumb” (under “The chosen dot”, further down) and drag the crumb to −0.5",
    chart: {
      title: "Moving and cutting, against the place of the second dot",
      x: { label: "place of the second dot", low: -6, high: 6, log: false },
      y: { label: "constant", low: 0, high: 8, log: false },
      at: (state, found) => [state.R * uncut(state).xi[1][0], found.constant],
      lines: [
        { name: "moving dots", kind: "own", points: (state) => spaced(-6, 6, 97, false).map((x) => [x, measured(modelOf(pairAt(state, x))).move]) },
        { name: "cutting one first", kind: "cut", points: (state) => spaced(-6, 6, 97, false).map((x) => [x, measured(modelOf(pairAt(state, x))).split]) },
      ],
    },
  },
  {
    slug: "infinity",
    name: "To infinity",
    sentence: "Push all dots outwards and each attends to one dot only: the constant falls back to the square root of how many look at the same dot, unless two dots tie.",
    task: "Make R large. Then drag the leftmost dot slowly down: where another dot hesitates between two, the number jumps.",
    start: {
      R: 1, turn: 160, form: "I", chosen: 0, eps: 0.2,
      xi: [[0.31, 0.68], [0.36, 0.91], [-0.55, -0.81], [0.92, -0.33], [-0.19, 0.71], [-0.02, 0.33], [-0.98, 0.05], [0.82, 0.53], [0.74, 0.09]],
      c: Array(9).fill(1),
    },
    play: (state, t) => ({ ...state, R: between(0.3, 12, t) }),
    chart: {
      title: "The constant against the radius",
      x: { label: "radius R", low: 0.3, high: 20, log: true },
      y: { label: "constant", low: 0.3, high: 1e4, log: true },
      ignores: ["R", "chosen"],
      at: (state, found) => [state.R, found.constant],
      lines: [
        { name: "these places", kind: "own", points: overRadius(0.3, 20, 36) },
        { name: "√(largest crowd)", kind: "guide", points: (state) => { const limit = farLimit(modelOf(state)); return limit === null ? [] : [[0.3, limit], [20, limit]]; } },
        { name: "worst-case bound", kind: "bound", points: worstOverRadius(0.3, 20) },
      ],
    },
  },
  {
    slug: "minilm",
    name: "A real head",
    sentence: `Head ${text.head} of layer ${text.layer} of MiniLM, on the plane where it is least smooth: words of Alice in Wonderland lie near the middle, far from the worst pair at the rim.`,
    task: "Press Play: two words walk to the rim, all others gather opposite. Undo brings the text back.",
    start: { R: text.radius, form: "minilm", value: "minilm", xi: words, c: words.map(() => 1), chosen: 0, labels: FEW.map((i) => text.words[i]), eps: 0.05 },
    play: (state, t) => ({ ...state, xi: onTheWay(t) }),
    note: (state) => `These ${state.xi.length} words, in this plane, have the constant ${shown(constantOf(state), 3)}. At the first ${text.words.length} tokens of the book, in all its dimensions, the head has ${shown(text.text_value, 3)} (${shown(text.text_typical, 2)} for random noise); at the worst pair known, of ${text.n} tokens, ${shown(text.whole_value, 3)}.`,
    chart: {
      title: "From the text to the worst pair",
      x: { label: "how far out the outermost dot is, as a share of R", low: 0, high: 1, log: false },
      y: { label: "constant", low: 0.5, high: 1e4, log: true },
      ignores: ["xi", "c", "chosen", "labels"],
      at: (state, found) => [reach(state.xi), found.constant],
      lines: [
        { name: "on the way", kind: "own", points: (state) => spaced(0, 1, 24, false).map((t) => { const xi = onTheWay(t), c = xi.map(() => 1); return [reach(xi), constantOf({ ...state, xi, c })]; }) },
        { name: "worst-case bound", kind: "bound", points: (state) => { const { worst: limit } = bounds(modelOf(state)); return limit === null ? [] : [[0, limit], [1, limit]]; } },
      ],
    },
  },
  {
    slug: "layer-norm",
    name: "On a circle",
    sentence: "Layer norm puts every dot on a circle whose radius is the gain of the norm: no dot rests in the middle and none goes to infinity, but ties remain.",
    task: "Drag the ringed dot round the circle and find where the number jumps. Then make the radius R smaller: in a network that is the gain of the norm.",
    start: { R: 3, xi: [polar(1.2), polar(-2), polar(0)], c: [1, 1, 30], place: "circle", chosen: 0 },
    play: (state, t) => ({ ...state, xi: state.xi.map((x, i) => (i === state.chosen ? polar(2 * Math.PI * t) : x)) }),
    chart: {
      title: "The constant as the chosen dot goes round",
      x: { label: "where the chosen dot is, in degrees", low: 0, high: 360, log: false },
      y: { label: "constant", low: 0.5, high: 1e3, log: true },
      at: (state, found) => [angleOf(state.xi[state.chosen]), found.constant],
      lines: [
        { name: "the chosen dot, all round", kind: "own", points: (state) => spaced(0, 360, 145, false).map((angle) => [angle, constantOf({ ...state, xi: state.xi.map((x, i) => (i === state.chosen ? polar((angle * Math.PI) / 180) : x)) })]) },
        { name: "worst-case bound", kind: "bound", points: (state) => { const { worst: limit } = bounds(modelOf(state)); return limit === null ? [] : [[0, limit], [360, limit]]; } },
      ],
    },
  },
];

// The dots as they were before the cut.
function uncut(state) {
  if (state.from === null) return state;
  const [kept, gone] = state.linked, without = (list) => list.filter((_, i) => i !== gone);
  return { ...state, xi: without(state.from.xi), c: without(state.from.c.map((c, i) => (i === kept ? c + state.from.c[gone] : c))) };
}
function pairAt(state, x) {
  const whole = uncut(state);
  return { ...whole, xi: [whole.xi[0], [x / state.R, 0]], c: whole.c.slice(0, 2), linked: null, from: null };
}

// γ = max(−γ_min, γ_max / 8) over the real eigenvalues of A; zero if it has none.
function steepness([a, b, c, d]) {
  const half = (a + d) / 2, root = half * half - (a * d - b * c);
  if (root < 0) return 0;
  return Math.max(-(half - Math.sqrt(root)), (half + Math.sqrt(root)) / 8, 0);
}
