// Attention on a few places x_i with c_i tokens each: n = Σ c_i tokens cost no more than the places.
// Scores: softmax ⟨Ax_i + b, x_j⟩; L2 −|Ax_i − x_j|²; sigmoid ⟨Ax_i + b, x_j⟩ − log n.
const count = (m) => m.c.reduce((sum, c) => sum + c, 0);
const sees = (m, i, j) => !m.causal || j <= i;
const sigmoid = (s) => (s >= 0 ? 1 / (1 + Math.exp(-s)) : Math.exp(s) / (1 + Math.exp(s)));

const score = (m, pull, y) => {
  if (m.mechanism !== "l2") return pull[0] * y[0] + pull[1] * y[1];
  return -((pull[0] - y[0]) ** 2) - (pull[1] - y[1]) ** 2;
};

// What each place gives to the others, how that changes with the score, and around which centre.
const attend = (m) => {
  const size = m.x.length, n = count(m);
  const [weights, slopes] = [new Float64Array(size * size), new Float64Array(size * size)];
  const pulls = m.x.map((x) => { const [u, v] = times(m.A, x); return m.mechanism === "l2" ? [u, v] : [u + m.b[0], v + m.b[1]]; });
  const means = [], centres = [];
  for (let i = 0; i < size; i++) {
    const scores = m.x.map((y) => score(m, pulls[i], y));
    let total = 0, mx = 0, my = 0;
    // the largest score becomes zero, so that nothing overflows
    const top = scores.reduce((best, s, j) => (sees(m, i, j) ? Math.max(best, s) : best), -Infinity);
    for (let j = 0; j < size; j++) {
      if (!sees(m, i, j)) continue;
      const at = i * size + j;
      if (m.mechanism === "sigmoid") {
        const s = scores[j] - Math.log(n);
        weights[at] = m.c[j] * sigmoid(s);
        slopes[at] = weights[at] * sigmoid(-s);
      } else {
        weights[at] = m.c[j] * Math.exp(scores[j] - top);
        total += weights[at];
      }
    }
    for (let j = 0; j < size; j++) {
      const at = i * size + j;
      if (m.mechanism !== "sigmoid") slopes[at] = weights[at] /= total;
      mx += weights[at] * m.x[j][0];
      my += weights[at] * m.x[j][1];
    }
    means.push([mx, my]);
    centres.push(m.mechanism === "sigmoid" ? [0, 0] : [mx, my]);
  }
  return { size, weights, slopes, pulls, means, centres, outputs: means.map((mean) => times(m.V, mean)) };
};

// How the score of i and j changes with x_j, and with x_i.
const scoreByKey = (m, f, i, j) => {
  const pull = f.pulls[i];
  return m.mechanism === "l2" ? [2 * (pull[0] - m.x[j][0]), 2 * (pull[1] - m.x[j][1])] : pull;
};
const scoreByQuery = (m, f, i, j) => {
  if (m.mechanism !== "l2") return timesTransposed(m.A, m.x[j]);
  const pull = f.pulls[i];
  return timesTransposed(m.A, [2 * (m.x[j][0] - pull[0]), 2 * (m.x[j][1] - pull[1])]);
};

// D_xΓ(x_i): how the output of one token moves with its own query alone; V C_i A for softmax.
const ownDerivative = (m, f, i) => {
  const inner = [0, 0, 0, 0];
  for (let k = 0; k < f.size; k++) {
    const slope = f.slopes[i * f.size + k];
    if (slope === 0) continue;
    const u = scoreByQuery(m, f, i, k);
    const y = [m.x[k][0] - f.centres[i][0], m.x[k][1] - f.centres[i][1]];
    inner[0] += slope * y[0] * u[0];
    inner[1] += slope * y[0] * u[1];
    inner[2] += slope * y[1] * u[0];
    inner[3] += slope * y[1] * u[1];
  }
  return product(m.V, inner);
};

// D^½ J D^−½: the derivative when the tokens of a place move together, in the metric that counts every token.
const jacobian = (m, f, own) => {
  const N = 2 * f.size, J = new Float64Array(N * N);
  for (let i = 0; i < f.size; i++) {
    for (let j = 0; j < f.size; j++) {
      const at = i * f.size + j, [w, slope] = [f.weights[at], f.slopes[at]];
      let block = [0, 0, 0, 0];
      if (w !== 0 || slope !== 0) {
        const t = scoreByKey(m, f, i, j);
        const y = [slope * (m.x[j][0] - f.centres[i][0]), slope * (m.x[j][1] - f.centres[i][1])];
        block = product(m.V, [w + y[0] * t[0], y[0] * t[1], y[1] * t[0], w + y[1] * t[1]]);
      }
      if (i === j) block = block.map((entry, k) => entry + own[i][k]);
      const root = Math.sqrt(m.c[i] / m.c[j]);
      const corner = 2 * i * N + 2 * j;
      J[corner] = root * block[0];
      J[corner + 1] = root * block[1];
      J[corner + N] = root * block[2];
      J[corner + N + 1] = root * block[3];
    }
  }
  return J;
};
