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

// The largest eigenvalue of a tridiagonal matrix by bisection, and its vector by inverse iteration.
const topOfTridiagonal = (diagonal, beside) => {
  const k = diagonal.length;
  const above = (t) => {
    let pivot = t - diagonal[0];
    for (let i = 1; i < k && pivot > 0; i++) pivot = t - diagonal[i] - (beside[i - 1] * beside[i - 1]) / pivot;
    return pivot > 0;
  };
  let low = Math.max(...diagonal);
  let high = Math.max(...diagonal.map((d, i) => d + Math.abs(beside[i - 1] ?? 0) + Math.abs(beside[i] ?? 0))) * (1 + 1e-15) + 1e-300;
  while (high - low > 1e-15 * high) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) break;
    if (above(middle)) high = middle;
    else low = middle;
  }
  // a hair above the eigenvalue the shifted matrix is definite, and elimination needs no pivots
  let shift = high * (1 + 4e-15);
  while (!above(shift)) shift += 1e-14 * high;
  let vector = new Float64Array(k).fill(1);
  for (let round = 0; round < 4; round++) {
    const pivots = [shift - diagonal[0]], x = Float64Array.from(vector);
    for (let i = 1; i < k; i++) {
      const factor = beside[i - 1] / pivots[i - 1];
      pivots.push(shift - diagonal[i] - factor * beside[i - 1]);
      x[i] += factor * x[i - 1];
    }
    x[k - 1] /= pivots[k - 1];
    for (let i = k - 2; i >= 0; i--) x[i] = (x[i] + beside[i] * x[i + 1]) / pivots[i];
    vector = divided(x, normOf(x));
  }
  return { value: high, vector };
};

// Golub–Kahan–Lanczos with full reorthogonalisation, for many places. It starts near the last direction, so that of
// several top directions the nearest is found, and with a part that no symmetry of an arrangement is orthogonal to.
const lanczosLeft = (J, N, last) => {
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
  const other = Float64Array.from({ length: N }, (_, i) => Math.sin(1 + 12.9898 * (i + 1)) + 0.1 * Math.cos(78.233 * i));
  const size = normOf(other);
  const start = other.map((entry, i) => (0.3 * entry) / size + (last !== null && last.length === N ? last[i] : 0));
  const [rights, lefts, alphas, betas] = [[divided(start, normOf(start))], [], [], []];
  let top = null;
  for (let step = 0; step < N; step++) {
    const u = orthogonalised(applied(J, N, rights[step]), lefts);
    const alpha = normOf(u);
    if (alpha <= 1e-300) break;
    alphas.push(alpha);
    lefts.push(divided(u, alpha));
    const v = orthogonalised(appliedTransposed(J, N, lefts[step]), rights);
    const beta = normOf(v), finished = step === N - 1 || beta < 1e-14 * alphas[0];
    if (step % 4 === 3 || finished) {
      const unit = alphas[0] + Math.max(...betas, 0);
      const square = (entry) => (entry === undefined ? 0 : (entry / unit) ** 2);
      const { value, vector } = topOfTridiagonal(
        alphas.map((a, i) => square(a) + square(betas[i])),
        alphas.slice(1).map((a, i) => ((betas[i] / unit) * a) / unit),
      );
      const found = unit * Math.sqrt(value), settled = top !== null && Math.abs(found - top.value) <= 1e-14 * found;
      top = { value: found, vector };
      if (settled || finished) break;
    }
    betas.push(beta);
    rights.push(divided(v, beta));
  }
  if (top === null) return [];
  const left = new Float64Array(N);
  top.vector.forEach((entry, i) => { for (let j = 0; j < N; j++) left[j] += top.value * entry * lefts[i][j]; });
  return [left];
};

// Up to a dozen places all singular values; beyond, the largest alone.
const DENSE = 24;

// The largest singular value with its vectors: those nearest to the last ones, so that arrows neither flip nor turn.
const topSingular = (J, N, last = null) => {
  const columns = N <= DENSE ? jacobiLeft(J, N) : lanczosLeft(J, N, last);
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
