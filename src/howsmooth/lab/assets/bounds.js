// Theorems about all inputs: n tokens, or measures, in the disk of radius R. Nothing is said where none applies.
const bounds = (m) => {
  const [a, v, shift, n, R] = [norm2(m.A), norm2(m.V), length(m.b), count(m), m.R];
  const c = a * R * R;
  if (m.mechanism !== "softmax") return { paper: null, worst: null };
  if (m.regime !== "measure") {
    return {
      paper: shift > 0 ? null : Math.sqrt(3) * v * Math.sqrt(c * c * (4 * n + 1) + n),
      worst: v * (Math.sqrt(n) + c + Math.sqrt(n / 2) * R * (a * R + shift)),
    };
  }
  if (shift > 0) return { paper: null, worst: null };
  if (m.causal) return { paper: null, worst: v * (2 * (1 + 2 * c) * Math.exp(2 * c) + c) };
  return { paper: v * (1 + 3 * c) * Math.exp(2 * c), worst: v * ((1 + 2 * c) * Math.exp(c) + c) };
};

// Tokens pushed to infinity look at one place each: ‖V‖ √(followers of a place / its tokens), the largest.
const farLimit = (m) => {
  if (m.mechanism !== "softmax") return null;
  const followers = m.x.map(() => 0);
  for (let i = 0; i < m.x.length; i++) {
    const pull = times(m.A, m.x[i]);
    const scores = m.x.map((y, j) => (sees(m, i, j) ? dot(pull, y) : -Infinity));
    const top = Math.max(...scores);
    const leaders = scores.flatMap((s, j) => (s >= top - 1e-9 * Math.abs(top) ? [j] : []));
    if (leaders.length > 1) return null;
    followers[leaders[0]] += m.c[i];
  }
  return norm2(m.V) * Math.sqrt(Math.max(...followers.map((tokens, j) => tokens / m.c[j])));
};
