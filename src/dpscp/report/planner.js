"use strict";
// Computes a plan from the public numbers of the sliders. `tables` comes from dpscp.report.planner; the division of the
// budget is that of dpscp.privacy.split_budget. tests/report/test_planner.py compares every function with the library.
function makePlanner(tables) {
  const STEP = 0.02, END = 12;

  // --- the normal law
  function exactCdf(x) { // for x <= 0
    if (x > -2.5) { // series around 0
      let term = x, sum = x;
      for (let k = 1; k < 60; k++) { term *= x * x / (2 * k + 1); sum += term; }
      return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
    }
    let fraction = 0; // continued fraction of the tail
    for (let k = 60; k > 0; k--) fraction = k / (-x + fraction);
    return Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI) / (-x + fraction);
  }
  const nodes = [];
  for (let k = 0; k * STEP <= END; k++) nodes.push([exactCdf(-END + k * STEP), density(-END + k * STEP)]);
  function density(x) { return Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI); }
  function cdf(x) { // cubic between the nodes
    if (x > 0) return 1 - cdf(-x);
    if (x <= -END) return 0;
    const place = Math.min(Math.floor((x + END) / STEP), nodes.length - 2), t = (x + END) / STEP - place, u = 1 - t;
    const [f, df] = nodes[place], [g, dg] = nodes[place + 1];
    return u * u * ((1 + 2 * t) * f + t * STEP * df) + t * t * ((1 + 2 * u) * g - u * STEP * dg);
  }

  // --- Gaussian differential privacy
  function lastWhere(holds, good, bad, within) {
    while (Math.abs(good - bad) > within) {
      const middle = (good + bad) / 2;
      if (middle === good || middle === bad) return good;
      if (holds(middle)) good = middle; else bad = middle;
    }
    return good;
  }
  function deltaOf(epsilon, mu) {
    return cdf(-epsilon / mu + mu / 2) - Math.exp(epsilon) * cdf(-epsilon / mu - mu / 2);
  }
  function muOf(epsilon, delta) {
    let high = 1;
    while (deltaOf(epsilon, high) <= delta) high *= 2;
    return lastWhere(mu => deltaOf(epsilon, mu) <= delta, 0, high, 1e-9 * high);
  }
  function epsilonOf(delta, mu) {
    if (2 * cdf(mu / 2) - 1 <= delta) return 0;
    let high = 1;
    while (deltaOf(high, mu) > delta) high *= 2;
    return lastWhere(epsilon => deltaOf(epsilon, mu) <= delta, high, 0, 1e-9 * high);
  }

  // --- the secret split
  const law = []; // points and weights of a normal law
  for (let k = -90; k <= 90; k++) law.push([k / 10, Math.exp(-k * k / 200)]);
  const total = law.reduce((sum, point) => sum + point[1], 0);
  function sampledMu(epsilon, delta, rate) {
    const inside = epsilon + Math.log1p((rate - 1) * Math.exp(-epsilon)) - Math.log(rate);
    return muOf(inside, Math.min(delta / rate, 0.5));
  }
  function call(strike, log, mu) {
    if (strike <= 0) return 1 - strike;
    const reach = mu / 2 - log / mu;
    return cdf(reach) - strike * cdf(reach - mu);
  }
  function heldOutMu(epsilon, delta, fraction, muTraining) {
    const points = law.map(([z, weight]) => {
      const trained = (1 - fraction) * Math.exp(muTraining * z - muTraining * muTraining / 2);
      const removed = (Math.exp(epsilon) - trained) / fraction, added = (Math.exp(-epsilon) - trained) / fraction;
      return [weight / total, removed, Math.log(removed), added, Math.log(added)];
    });
    function deltaAt(mu) {
      let removed = 0, added = 0;
      for (const [weight, first, firstLog, second, secondLog] of points) {
        removed += weight * call(first, firstLog, mu);
        if (second > 0) added += weight * (call(second, secondLog, mu) - 1 + second);
      }
      return fraction * Math.max(removed, Math.exp(epsilon) * added);
    }
    const smallest = 1e-3 * muTraining;
    if (deltaAt(smallest) > delta) return 0;
    const largest = sampledMu(epsilon, delta, fraction);
    return lastWhere(mu => deltaAt(mu) <= delta, smallest, largest, 1e-4 * largest);
  }
  const known = new Map();
  function splitBudget(epsilon, delta, fraction, n) {
    const mu = muOf(epsilon, delta);
    if (epsilon > tables.largest_mixed) return {trainEpsilon: epsilon, mu};
    const key = [epsilon, delta, fraction].join();
    if (!known.has(key)) {
      const largest = sampledMu(epsilon, delta, 1 - fraction);
      let levels = tables.given_up.map(share => (1 - share) * largest).filter(level => epsilonOf(delta, level) > 0);
      if (!levels.length) levels = [mu];
      known.set(key, levels.map(level => [level, heldOutMu(epsilon, delta, fraction, level)]));
    }
    let best = null, least = Infinity;
    for (const [training, search] of known.get(key)) {
      const overshoot = search > 0 ? tables.overshoot / (fraction * n * search) : Infinity;
      const size = tables.size_of_overshoot * overshoot - tables.training_gain * Math.log(training);
      if (best === null || size < least) { best = [training, search]; least = size; }
    }
    return {trainEpsilon: epsilonOf(delta, best[0]) || epsilon, mu: best[1] || mu};
  }

  // --- tables
  function between(grid, x) { // neighbors and weight of the right one; the ends outside the grid
    if (x <= grid[0]) return [0, 0, 0];
    const last = grid.length - 1;
    if (x >= grid[last]) return [last, last, 0];
    const right = grid.findIndex(value => value > x);
    return [right - 1, right, (x - grid[right - 1]) / (grid[right] - grid[right - 1])];
  }
  function rankOffset(level, signal) { // ranks times mu
    const row = tables.search.offsets[tables.levels.indexOf(level)];
    const [i, j, t] = between(tables.search.log_signals, Math.log(signal));
    return row[i] * (1 - t) + row[j] * t;
  }
  function setSize(task, n, epsilon, level) {
    const [a, b, s] = between(task.n.map(Math.log), Math.log(n));
    const [c, d, t] = between(task.epsilon.map(Math.log), Math.log(epsilon));
    const [e, f, u] = between(task.level, level);
    const mix = (x, y, w) => x * (1 - w) + y * w, at = (i, k) => mix(task.size[i][k][e], task.size[i][k][f], u);
    return mix(mix(at(a, c), at(a, d), t), mix(at(b, c), at(b, d), t), s);
  }

  // --- the plan
  function plan({n, epsilon, delta, level, rows = 1, ids = true, groups = 1}) {
    const protectedMu = muOf(epsilon, delta);
    const rowEpsilon = rows > 1 && !ids ? epsilonOf(delta, protectedMu / rows) : epsilon;
    if (!(rowEpsilon > 0)) return {rowEpsilon, useful: false, overshoot: null};
    const fraction = Math.min(0.5, Math.max(tables.least_held_out, Math.sqrt(tables.search_cost / (n * muOf(rowEpsilon, delta)))));
    const shared = splitBudget(rowEpsilon, delta, fraction, n);
    const scores = Math.max(1, Math.round(fraction * n / groups)), mu = shared.mu / tables.margin;
    const inner = tables.search.inner_alphas[tables.levels.indexOf(level)];
    const offset = rankOffset(level, mu * (scores + 1)) / mu;
    const useful = (1 - inner) * (scores + 1) + offset <= scores;
    return {
      rowEpsilon, fraction, scores, offset, useful, trainEpsilon: shared.trainEpsilon, mu: shared.mu,
      overshoot: useful ? Math.max(0, Math.min(1, 1 - inner + offset / (scores + 1)) - level) : null,
    };
  }
  function quantile(p) { return lastWhere(x => cdf(x) <= p, -END, END, 1e-10); }
  function attack(epsilon, delta, alarms) { // the share of members that is found: a Gaussian release, any release
    const any = Math.min(Math.exp(epsilon) * alarms + delta, 1 - Math.exp(-epsilon) * (1 - alarms - delta));
    return {gaussian: cdf(quantile(alarms) + muOf(epsilon, delta)), any: Math.min(1, any)};
  }
  return {cdf, muOf, epsilonOf, splitBudget, rankOffset, setSize, plan, attack};
}
if (typeof module !== "undefined") module.exports = {makePlanner};
