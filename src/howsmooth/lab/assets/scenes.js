// Eight scenes on one thread: a start, a sentence whose numbers are those of the stage, a question with its answer, the theorem
// behind it, what Play does, and one chart.
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
const asFar = (value, digits) => (shown(value, digits) === "1" ? "just as far" : `${shown(value, digits)} times as far`);
const reach = (xi) => Math.max(...xi.map(length));

// Dots that lie apart, and the way from there to the middle.
const APART = [[0.05, 0.9], [-0.1, -0.92], [0.88, 0.1], [0.55, -0.6], [-0.7, 0.35], [-0.5, -0.5]];
const gathered = (t) => APART.map(([x, y]) => [x * (1 - t), y * (1 - t)]);

const SCENES = [
  {
    slug: "why",
    name: "Why care",
    sentence: (state, found) => `Each dot is a token, a word as a network sees it; attention replaces it by an average of all, its square. Push the dots a little in the worst way there is, and the squares move ${asFar(found.constant, 3)}; after a random push, ${asFar(found.typical, 2)}. Where that is much, a change that nobody sees changes what a network says.`,
    question: "Where must the dots be so that the worst push comes out no larger than it went in? Drag them until the number is 1 or less.",
    answer: (state, found) => `Close together: there is little to choose between, and attention is nearly a mean. You have ${shown(found.constant, 3)}; Play goes there.`,
    theorem: { name: "Theorem 3", page: "at_input.html#theorem-3" },
    start: { R: 3, xi: APART, c: APART.map(() => 1), chosen: 0 },
    play: (state, t) => ({ ...state, xi: gathered(t) }),
    chart: {
      title: "The constant as the dots gather in the middle",
      x: { label: "how far out the outermost dot is, as a share of R", low: 0, high: 1, log: false },
      y: { label: "constant", low: 0.5, high: 1e3, log: true },
      ignores: ["xi", "c", "chosen"],
      at: (state, found) => [reach(state.xi), found.constant],
      lines: [
        { name: "on the way", kind: "own", points: (state) => spaced(0, 1, 32, false).map((t) => { const xi = gathered(t), c = xi.map(() => 1); return [reach(xi), constantOf({ ...state, xi, c })]; }) },
        { name: "worst-case bound", kind: "bound", points: (state) => { const { worst: limit } = bounds(modelOf(state)); return limit === null ? [] : [[0, limit], [1, limit]]; } },
      ],
    },
  },
  {
    slug: "infinity",
    name: "One token",
    sentence: (state, found) => { const limit = farLimit(modelOf(state)); return `Push all dots outwards and each looks at one token only: whoever moves that token moves all who look at it. The number is ${shown(found.constant, 3)} now${limit === null ? "" : ` and goes to ${shown(limit, 3)}, the square root of the largest crowd with one leader`}, unless two dots tie.`; },
    question: "Make R large: how many dots copy the same token? Then drag the leftmost dot slowly down: where does the number jump?",
    answer: (state, found) => `As many as the number squared once R is large (now ${shown(found.constant ** 2, 3)}). It jumps where a dot hesitates between two leaders.`,
    theorem: { name: "Theorem 6", page: "large_radius.html#theorem-6" },
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
    slug: "tied-pair",
    name: "Two that tie",
    sentence: (state, found) => `A crowd that cannot decide between two dots jumps from one to the other at a touch. At R = ${shown(state.R, 3)} the worst push comes out ${shown(found.constant, 3)} times as large: tied pairs grow like R², the fastest there is for n tokens.`,
    question: "Double R: by what factor does the number grow? Then drag one dot of the pair a little sideways: why does it fall?",
    answer: (state, found) => `From R to 2R by ${shown(constantOf({ ...state, R: 2 * state.R }) / found.constant, 3)}, and by 4 where R is large and the pair ties. Off the tie the crowd prefers one dot, and has nowhere to jump.`,
    theorem: { name: "Theorem 2", page: "worst_inputs.html#theorem-2" },
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
    slug: "crowd",
    name: "√n",
    sentence: (state, found) => `Here every dot looks at the dot most opposite to it. The crowd looks at one dot and copies it, so a small move of that dot moves all their outputs at once: about √n = ${shown(Math.sqrt(found.n), 3)} times the move. The number is ${shown(found.constant, 3)}.`,
    question: "Make n a hundred times larger: by what factor does the number grow? Then drag the crowd slowly up along the rim.",
    answer: (state, found) => { const n = Math.min(1e6, 100 * found.n); return `To ${shown(n, 7)} tokens by ${shown(constantOf(withCount(state, n)) / found.constant, 3)}; √ says ${shown(Math.sqrt(n / found.n), 3)}. On the rim it shoots up where the crowd is as far from one dot as from the other: a tie.`; },
    theorem: { name: "Theorem 1", page: "ball.html#theorem-1" },
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
    slug: "mean-field",
    name: "Without end",
    sentence: (state, found) => `With as many tokens as one likes, a dot that holds a tiny share of them (its mass) can steer all the others. At R = ${shown(state.R, 3)} the number is ${shown(found.constant, 3)}: the largest grows exponentially with R², and so does the number of tokens that it takes.`,
    question: "Pull the ⊕ of the light dot on the left up and down: which share makes the number largest? Play shows it for every R.",
    answer: (state) => { const m = modelOf(state); return m.x.length !== 2 ? "A small one: so few tokens that nobody looks at them, until they move." : `One token of ${shown(1 / bestMass(m).share, 4)}: more of them, and they are looked at already; fewer, and nobody follows.`; },
    theorem: { name: "Theorem 7", page: "measures.html#theorem-7" },
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
      return `At this R the peak is ${shown(peak.value, 3)}, where the light dot holds ${shown(peak.share, 2)} of all tokens: one of ${shown(1 / peak.share, 3)}. It takes about ${shown(needed, 3)} tokens before this shows.`;
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
    sentence: (state, found) => `Two halves of one dot, pulled apart, can move the output further than any move of whole dots: here moving gives ${shown(found.move, 3)}, and cutting one first ${found.distinct ? shown(found.split, 3) : "nothing that can be said"}. Near the centre it pays to split a dot.`,
    question: "Press Cut and pull one half. Where along the line does cutting stop to pay?",
    answer: () => "Where the two curves of the chart cross: further out, moving whole dots does more.",
    theorem: { name: "Theorem 9", page: "splitting.html#theorem-9" },
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
    slug: "minilm",
    name: "Real text",
    sentence: (state, found) => `Head ${text.head} of layer ${text.layer} of MiniLM, on the plane where it is least smooth: words of Alice in Wonderland lie near the middle, and the worst push comes out ${shown(found.constant, 3)} times as large; the worst pair is at the rim.`,
    question: "Press Play: two words walk to the rim, all others gather opposite. How much worse than the text is the worst input?",
    answer: () => `On this plane, compare the number before and after Play. In all dimensions ${shown(text.whole_value / text.text_value, 2)} times: ${shown(text.whole_value, 3)} at the worst pair known of 64 tokens, ${shown(text.text_value, 3)} at 24 tokens of text. Text does not go there by itself.`,
    theorem: { name: "Theorem 4", page: "at_input.html#theorem-4" },
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
    name: "What it means",
    sentence: (state, found) => { const limit = bounds(modelOf(state)).worst; return `In a network a norm puts every dot on a circle, whose radius is its gain, here ${shown(state.R, 3)}. None goes to infinity${limit === null ? "" : `, and no input exceeds ${shown(limit, 3, 1)}`}; but ties remain, and this input has ${shown(found.constant, 3)}.`; },
    question: "Drag the ringed dot round the circle: where does the number jump? Then halve R: by what factor does the worst-case bound fall?",
    answer: (state) => { const of = (R) => bounds(modelOf({ ...state, R })).worst, now = of(state.R); return now === null ? "It jumps at ties; for these scores the page knows no bound." : `It jumps where the crowd ties. The bound falls by ${shown(now / of(state.R / 2), 3)}: small gains make attention smooth whatever the text is; without a norm dots may go anywhere, and no bound holds.`; },
    theorem: { name: "Theorem 1", page: "ball.html#theorem-1" },
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
