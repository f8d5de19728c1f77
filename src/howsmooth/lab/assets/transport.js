// W₂ between two discrete measures of a few atoms: the cheapest way to carry mass, by shortest augmenting paths.
const wasserstein = (one, other) => {
  const total = (measure) => measure.c.reduce((sum, c) => sum + c, 0);
  const [p, q] = [one.x.length, other.x.length];
  const supply = one.c.map((c) => c / total(one)), demand = other.c.map((c) => c / total(other));
  const cost = one.x.map((x) => other.x.map((y) => (x[0] - y[0]) ** 2 + (x[1] - y[1]) ** 2));
  const flow = cost.map((row) => row.map(() => 0));
  const least = 1e-17;
  for (let round = 0; round < 40 * (p + q) && supply.some((s) => s > least); round++) {
    // Bellman–Ford over sources 0 … p−1 and sinks p … p+q−1; mass that was sent may be sent back
    const distance = [...supply.map((s) => (s > least ? 0 : Infinity)), ...demand.map(() => Infinity)];
    const from = distance.map(() => -1);
    for (let changed = true, rounds = 0; changed && rounds <= p + q; rounds++) {
      changed = false;
      for (let i = 0; i < p; i++) {
        for (let j = 0; j < q; j++) {
          if (distance[i] + cost[i][j] < distance[p + j] - 1e-14 * (1 + cost[i][j])) {
            distance[p + j] = distance[i] + cost[i][j];
            from[p + j] = i;
            changed = true;
          }
          if (flow[i][j] > least && distance[p + j] - cost[i][j] < distance[i] - 1e-14 * (1 + cost[i][j])) {
            distance[i] = distance[p + j] - cost[i][j];
            from[i] = p + j;
            changed = true;
          }
        }
      }
    }
    const sinks = demand.flatMap((d, j) => (d > least && distance[p + j] < Infinity ? [j] : []));
    if (sinks.length === 0) break;
    const sink = sinks.reduce((best, j) => (distance[p + j] < distance[p + best] ? j : best));
    const path = [];
    for (let at = p + sink; from[at] >= 0 && path.length <= 2 * (p + q); at = from[at]) path.push([from[at], at]);
    const source = path[path.length - 1][0];
    let amount = Math.min(supply[source], demand[sink]);
    for (const [a, b] of path) if (a >= p) amount = Math.min(amount, flow[b][a - p]);
    for (const [a, b] of path) {
      if (a < p) flow[a][b - p] += amount;
      else flow[b][a - p] -= amount;
    }
    supply[source] -= amount;
    demand[sink] -= amount;
  }
  return Math.sqrt(cost.reduce((sum, row, i) => sum + row.reduce((part, d, j) => part + d * flow[i][j], 0), 0));
};

// How far outputs really went, over how far inputs went.
const trueRatio = (m, before, after) => {
  const [here, there] = [{ ...m, ...before }, { ...m, ...after }];
  const way = wasserstein(before, after);
  if (!(way > 0)) return null;
  return wasserstein({ x: attend(here).outputs, c: before.c }, { x: attend(there).outputs, c: after.c }) / way;
};
