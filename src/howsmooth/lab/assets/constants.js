// The local constant of a model m = {x, c, A, b, V, mechanism, causal, regime}: what the worst small perturbation is
// multiplied by. Tokens of one place may part: parts see nothing but D_xΓ, and are orthogonal to what places do together.
const measured = (m, last = null) => {
  const f = attend(m), n = count(m);
  const own = m.x.map((_, i) => ownDerivative(m, f, i));
  const J = jacobian(m, f, own), N = 2 * f.size;
  const top = topSingular(J, N, last);
  const parting = own.map(norm2);
  // in a measure every atom can be cut; in a sequence only places of two tokens and more
  const cuttable = m.c.map((c) => m.regime === "measure" || c >= 2);
  const atom = parting.reduce((best, value, i) => (cuttable[i] && (best < 0 || value > parting[best]) ? i : best), -1);
  const split = atom < 0 ? 0 : parting[atom];
  const constant = m.regime === "measure" ? top.value : Math.max(top.value, split);
  let energy = squares(J);
  m.c.forEach((c, i) => { energy += Math.max(c - 1, 0) * squares(own[i]); });
  // as many tokens as one likes: what each of them does by itself is all that is left of noise
  const limit = m.c.reduce((sum, c, i) => sum + (c / n) * squares(own[i]), 0) / 2;
  return {
    f, J, N, own, n, constant, split, atom,
    move: top.value,
    right: top.right,
    left: top.left,
    typical: Math.sqrt(m.regime === "measure" ? limit : energy / (2 * n)),
    parts: constant > top.value,
    distinct: outputsDiffer(m, f),
  };
};

// Where two places have one output, what is cut could be matched anew: nothing is claimed then.
const outputsDiffer = (m, f) => {
  const spread = Math.max(...f.outputs.map(length), 1e-300);
  return f.outputs.every((one, i) => f.outputs.every((other, j) =>
    j >= i || length([m.x[i][0] - m.x[j][0], m.x[i][1] - m.x[j][1]]) === 0 || length([one[0] - other[0], one[1] - other[1]]) > 1e-9 * spread));
};

// Γ at a place without mass: it sees the tokens, and nobody sees it.
const outputAt = (m, i, y) => {
  const x = [...m.x], c = [...m.c];
  x.splice(i + 1, 0, y);
  c.splice(i + 1, 0, 0);
  return attend({ ...m, x, c }).outputs[i + 1];
};
const secant = (m, i, y) => {
  const [here, there] = [attend(m).outputs[i], outputAt(m, i, y)];
  return length([there[0] - here[0], there[1] - here[1]]) / length([y[0] - m.x[i][0], y[1] - m.x[i][1]]);
};
