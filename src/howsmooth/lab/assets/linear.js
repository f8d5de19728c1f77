// Linear algebra: 2×2 matrices [a, b, c, d] by rows, and the largest singular value of a square one.
const times = (M, [x, y]) => [M[0] * x + M[1] * y, M[2] * x + M[3] * y];
const timesTransposed = (M, [x, y]) => [M[0] * x + M[2] * y, M[1] * x + M[3] * y];
const product = (M, N) => [M[0] * N[0] + M[1] * N[2], M[0] * N[1] + M[1] * N[3], M[2] * N[0] + M[3] * N[2], M[2] * N[1] + M[3] * N[3]];
const scaled = (s, M) => M.map((entry) => s * entry);
const rotation = (degrees) => {
  const angle = (degrees * Math.PI) / 180;
  const [c, s] = degrees % 90 === 0 ? [Math.round(Math.cos(angle)), Math.round(Math.sin(angle))] : [Math.cos(angle), Math.sin(angle)];
  return [c, -s, s, c];
};
const dot = (u, v) => u.reduce((sum, entry, k) => sum + entry * v[k], 0);
const length = (u) => Math.hypot(...u);

// The singular values of a 2×2 matrix are half the sum and half the difference of two distances.
const norm2 = ([a, b, c, d]) => (Math.hypot(a + d, c - b) + Math.hypot(a - d, b + c)) / 2;
const squares = (M) => M.reduce((sum, entry) => sum + entry * entry, 0);
// The top right singular vector of a 2×2 matrix.
const topDirection = ([a, b, c, d]) => {
  const angle = 0.5 * Math.atan2(2 * (a * b + c * d), a * a + c * c - b * b - d * d);
  return [Math.cos(angle), Math.sin(angle)];
};

// One number in a million and a quarter: singular values that agree so well are taken for one.
const SAME = 8e-7;

// Products with a matrix of N rows, and with its transpose.
const applied = (J, N, v) => {
  const out = new Float64Array(N);
  for (let i = 0; i < N; i++) {
    let sum = 0;
    for (let j = 0, at = i * N; j < N; j++, at++) sum += J[at] * v[j];
    out[i] = sum;
  }
  return out;
};
const appliedTransposed = (J, N, u) => {
  const out = new Float64Array(N);
  for (let i = 0; i < N; i++) {
    const factor = u[i];
    for (let j = 0, at = i * N; j < N; j++, at++) out[j] += factor * J[at];
  }
  return out;
};
const normOf = (v) => {
  let largest = 0;
  for (const entry of v) largest = Math.max(largest, Math.abs(entry));
  if (!(largest > 0)) return 0;
  let sum = 0;
  for (const entry of v) sum += (entry / largest) ** 2;
  return largest * Math.sqrt(sum);
};
const divided = (v, by) => Float64Array.from(v, (entry) => entry / by);

// One-sided Jacobi: turn pairs of columns until all are orthogonal; their lengths are the singular values.
const jacobiLeft = (J, N) => {
  const columns = Array.from({ length: N }, (_, j) => Float64Array.from({ length: N }, (_, i) => J[i * N + j]));
  for (let sweep = 0; sweep < 30; sweep++) {
    let turned = false;
    // the longest first: fewer sweeps
    columns.sort((one, other) => normOf(other) - normOf(one));
    const sizes = columns.map((column) => { const size = normOf(column); return size * size; });
    for (let p = 0; p < N - 1; p++) {
      for (let q = p + 1; q < N; q++) {
        const [one, other] = [columns[p], columns[q]];
        let mixed = 0;
        for (let i = 0; i < N; i++) mixed += one[i] * other[i];
        if (Math.abs(mixed) <= 1e-15 * Math.sqrt(sizes[p] * sizes[q]) || mixed === 0) continue;
        turned = true;
        const ratio = (sizes[q] - sizes[p]) / (2 * mixed);
        const t = (ratio >= 0 ? 1 : -1) / (Math.abs(ratio) + Math.hypot(1, ratio));
        const c = 1 / Math.hypot(1, t), s = c * t;
        for (let i = 0; i < N; i++) {
          const [a, b] = [one[i], other[i]];
          one[i] = c * a - s * b;
          other[i] = s * a + c * b;
        }
        sizes[p] -= t * mixed;
        sizes[q] += t * mixed;
      }
    }
    if (!turned) break;
  }
  return columns;
};

// Golub–Kahan–Lanczos with full reorthogonalisation, for large matrices.
const lanczosLeft = (J, N) => {
  const orthogonalised = (v, basis) => {
    for (let round = 0; round < 2; round++) {
      for (const b of basis) {
        let overlap = 0;
        for (let i = 0; i < N; i++) overlap += v[i] * b[i];
        for (let i = 0; i < N; i++) v[i] -= overlap * b[i];
      }
    }
    return v;
  };
  // a start that no symmetry of an arrangement is orthogonal to
  const start = Float64Array.from({ length: N }, (_, i) => Math.sin(1 + 12.9898 * (i + 1)) + 0.1 * Math.cos(78.233 * i));
  const [rights, lefts, alphas, betas] = [[divided(start, normOf(start))], [], [], []];
  let top = null;
  for (let step = 0; step < N; step++) {
    const u = orthogonalised(applied(J, N, rights[step]), lefts);
    const alpha = normOf(u);
    if (alpha === 0) break;
    alphas.push(alpha);
    lefts.push(divided(u, alpha));
    const v = orthogonalised(appliedTransposed(J, N, lefts[step]), rights);
    const beta = normOf(v);
    if (step % 8 === 7 || step === N - 1 || beta < 1e-13 * alphas[0]) {
      const k = alphas.length;
      const small = new Float64Array(k * k);
      for (let i = 0; i < k; i++) {
        small[i * k + i] = alphas[i];
        if (i + 1 < k) small[i * k + i + 1] = betas[i];
      }
      const found = jacobiLeft(small, k).reduce((best, column) => (normOf(column) > normOf(best) ? column : best));
      const value = normOf(found);
      const left = new Float64Array(N);
      for (let i = 0; i < k; i++) for (let j = 0; j < N; j++) left[j] += (found[i] / value) * lefts[i][j];
      const settled = top !== null && Math.abs(value - normOf(top)) <= 1e-13 * value;
      top = left.map((entry) => entry * value);
      if (settled || beta < 1e-13 * alphas[0]) break;
    }
    if (beta === 0) break;
    betas.push(beta);
    rights.push(divided(v, beta));
  }
  return top === null ? [] : [top];
};

const DENSE = 64;

// The largest singular value with its vectors: those nearest to the last ones, so that arrows neither flip nor turn.
const topSingular = (J, N, last = null) => {
  const columns = N <= DENSE ? jacobiLeft(J, N) : lanczosLeft(J, N);
  const value = columns.reduce((best, column) => Math.max(best, normOf(column)), 0);
  if (value === 0) return { value, right: new Float64Array(N), left: new Float64Array(N) };
  const leading = columns.filter((column) => normOf(column) >= value * (1 - SAME));
  const rights = leading.map((column) => {
    const right = appliedTransposed(J, N, divided(column, normOf(column)));
    return divided(right, normOf(right));
  });
  let right = rights[0];
  if (last !== null && last.length === N) {
    const along = new Float64Array(N);
    for (const one of rights) {
      let overlap = 0;
      for (let i = 0; i < N; i++) overlap += one[i] * last[i];
      for (let i = 0; i < N; i++) along[i] += overlap * one[i];
    }
    if (normOf(along) > 0.05) right = divided(along, normOf(along));
  }
  const moved = applied(J, N, right);
  return { value, right, left: divided(moved, normOf(moved)) };
};
