// One state, one picture of it for each frame.
const lab = (() => {
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  let state = readLink(location.hash), past = [], committed = state, running = null, last = null, pending = false, written = "";
  const known = new Map(), timings = [];
  const scene = () => SCENES.find(({ slug }) => slug === state.scene);

  // What is known of all inputs depends on these alone.
  const question = (m) => JSON.stringify([m.A, m.b, m.V, m.mechanism, m.causal, m.regime, m.R, m.regime === "tokens" ? count(m) : null, state.place]);
  const remember = (m, found) => {
    const key = question(m), best = known.get(key);
    if (best && found.constant > best.value * (1 + 1e-9)) known.set(key, { value: found.constant, xi: state.xi, c: state.c });
  };

  // What takes longer than a frame waits until the hand rests.
  const resting = (delay, action) => {
    let timer = null;
    return () => { clearTimeout(timer); timer = setTimeout(action, delay); };
  };
  const look = resting(150, () => {
    const m = modelOf(state), key = question(m);
    if (!known.has(key)) known.set(key, bestKnown(m, state.place));
    remember(m, measured(m));
    lanes(m, measured(m, last));
  });
  const slowCurves = resting(120, () => readout.curves(state));
  const speak = resting(700, () => {
    const found = measured(modelOf(state));
    const said = `Constant ${shown(found.constant, 4)}; random direction ${shown(found.typical, 3)}.`;
    if (byId("spoken").textContent !== said) byId("spoken").textContent = said;
  });

  const lanes = (m, found) => {
    const { paper, worst: bound } = bounds(m), best = known.get(question(m));
    const cut = state.regime === "measure" && found.distinct ? found.split : null;
    readout.laneNumbers({ typical: found.typical, worst: found.constant, cut, known: best?.value ?? null, bound, paper });
    byId("go-known").disabled = best === undefined;
    byId("any-title").textContent = state.regime === "measure" ? "Any shares of tokens in this R" : `Any ${shown(count(m), 7)} tokens in this R`;
  };

  const ratio = (m) => {
    const moved = state.from !== null && state.xi.length === state.from.xi.length && state.xi.length <= 12;
    const scaledPlaces = (xi) => xi.map(([x, y]) => [m.R * x, m.R * y]);
    const value = moved ? trueRatio(m, { x: scaledPlaces(state.from.xi), c: state.from.c }, { x: m.x, c: m.c }) : null;
    byId("ratio").hidden = value === null;
    if (value !== null) byId("ratio").textContent = `Pulled this far, outputs really moved ${shown(value, 4)} times as far as inputs (in the distance of optimal transport).`;
    return value;
  };

  const words = (found, m) => {
    byId("constant").textContent = shown(found.constant, 4);
    byId("worst-times").textContent = `${shown(found.constant, 4)} times`;
    byId("typical-times").textContent = `${found.typical < 1e-6 ? "almost 0" : shown(found.typical, 2)} times`;
    const pulled = ratio(m);
    const says = byId("cut-says");
    says.hidden = state.regime !== "measure";
    const wins = found.distinct && found.split > found.constant * (1 + 1e-9);
    if (pulled !== null) says.textContent = `The parts as they are pulled now: outputs moved ×${shown(pulled, 4)} as far as they did.`;
    else if (!found.distinct) says.textContent = "Two dots have the same output: nothing is claimed about cutting.";
    else says.textContent = `One dot cut in two, its halves pulled apart: ×${shown(found.split, 4)}, ${wins ? "more than moving whole dots." : "no more than moving whole dots."}`;
  };

  const draw = () => {
    pending = false;
    const started = performance.now();
    const m = modelOf(state), found = measured(m, last);
    last = found.right;
    stage.draw(state, m, found);
    words(found, m);
    readout.history(started, found.constant);
    remember(m, found);
    lanes(m, found);
    if (state.xi.length <= 4) readout.curves(state);
    else slowCurves();
    readout.point(state, found);
    panel.show(state, m);
    byId("sentence").textContent = scene().sentence(state, found);
    if (!byId("answer").hidden) byId("answer").textContent = scene().answer(state, found);
    const said = scene().note?.(state) ?? "";
    byId("note").hidden = said === "";
    byId("note").textContent = said;
    byId("undo").disabled = past.length === 0;
    timings.push(performance.now() - started);
    if (timings.length > 400) timings.shift();
    look();
    speak();
  };
  const redraw = () => {
    if (!pending) requestAnimationFrame(draw);
    pending = true;
  };

  const commit = () => {
    if (state !== committed) past = [...past.slice(-99), committed];
    committed = state;
    written = writeLink(state);
    if (location.hash !== written) location.replace(written);
    redraw();
  };
  const change = (how, whole) => {
    state = how(state);
    if (whole) commit();
    else redraw();
  };
  const undo = () => {
    stop();
    if (past.length === 0) return;
    state = committed = past[past.length - 1];
    past = past.slice(0, -1);
    entered();
    written = writeLink(state);
    location.replace(written);
    redraw();
  };

  // Play and Climb: by the frame, or a few large steps where motion is unwelcome.
  const stop = () => {
    if (running === null) return;
    running.over = true;
    running.button.setAttribute("aria-pressed", "false");
    running.button.textContent = running.label;
    running = null;
    commit();
  };
  const run = (button, busy, step) => {
    const again = running?.button === button;
    stop();
    if (again) return;
    const own = { button, label: button.textContent, over: false };
    running = own;
    button.textContent = busy;
    button.setAttribute("aria-pressed", "true");
    let before = performance.now();
    const tick = () => {
      if (own.over) return;
      const now = performance.now(), passed = calm.matches ? 700 : Math.min(now - before, 100);
      before = now;
      if (!step(passed)) stop();
      else if (calm.matches) setTimeout(tick, 600);
      else requestAnimationFrame(tick);
      redraw();
    };
    tick();
  };
  const play = () => {
    let t = 0;
    const { play: move } = scene();
    run(byId("play"), "❚❚ Pause", (passed) => {
      t = Math.min(1, t + passed / 8000);
      state = move(state, t);
      return t < 1;
    });
  };
  const climb = () => {
    let step = 0.05;
    run(byId("climb"), "■ Stop", () => {
      for (let round = 0; round < (calm.matches ? 12 : 1); round++) {
        const m = modelOf(state), up = climbStep(state, m, measured(m, last), step);
        if (up === null) return false;
        ({ step } = up);
        state = { ...state, xi: up.xi, linked: null, from: null };
      }
      return true;
    });
  };
  const showKnown = () => {
    const best = known.get(question(modelOf(state)));
    if (best) change((s) => ({ ...s, xi: best.xi, c: best.c, labels: undefined, chosen: best.c.indexOf(Math.max(...best.c)), linked: null, from: null }), true);
  };

  const unfold = (open) => {
    byId("answer").hidden = !open;
    byId("ask").setAttribute("aria-expanded", String(open));
    byId("ask").textContent = open ? "Hide the answer" : "Answer";
  };
  const entered = () => {
    const now = scene();
    last = null;
    byId("scene-title").textContent = `${SCENES.indexOf(now) + 1}. ${now.name}`;
    byId("task-text").textContent = now.question;
    unfold(false);
    byId("theorem").textContent = `(${now.theorem.name})`;
    byId("theorem").title = `docs/theory/${now.theorem.page.replace("html", "md")}`;
    // on the site the proof is a page; a file of its own has none beside it
    if (location.pathname.includes("/_static/")) byId("theorem").href = `../theory/${now.theorem.page}`;
    byId("more").hidden = !now.more;
    if (now.more) {
      byId("more").textContent = `${now.more.label}: ${now.moreTask}.`;
      byId("more").href = now.more.link;
    }
    for (const button of byId("scenes").querySelectorAll("a")) {
      if (button.hash === `#scene=${now.slug}`) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
    readout.axes(now);
    readout.curves(state);
  };
  const arrive = () => {
    const wanted = location.hash;
    if (wanted === written) return;
    stop(); // which writes the link of what was running
    past = [...past.slice(-99), committed];
    state = committed = readLink(wanted);
    written = wanted;
    if (location.hash !== wanted) location.replace(wanted);
    entered();
    redraw();
  };

  SCENES.forEach(({ slug, name }, i) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = `#scene=${slug}`;
    link.textContent = `${i + 1}. ${name}`;
    item.append(link);
    byId("scenes").append(item);
  });
  const panel = controls({ state: () => state, change, commit, undo, stop });
  byId("play").addEventListener("click", play);
  byId("ask").addEventListener("click", () => { unfold(byId("answer").hidden); redraw(); });
  byId("climb").addEventListener("click", climb);
  byId("undo").addEventListener("click", undo);
  byId("reset").addEventListener("click", () => { stop(); change(() => initial(scene()), true); entered(); });
  byId("go-known").addEventListener("click", showKnown);
  byId("link").addEventListener("click", async () => {
    const link = `${location.href.split("#")[0]}${writeLink(state)}`;
    let said = "Copied.";
    try { await navigator.clipboard.writeText(link); } catch { said = "It is in the address bar."; }
    byId("linked").textContent = said;
  });
  window.addEventListener("hashchange", arrive);
  written = location.hash;
  entered();
  const ready = new Promise((done) => requestAnimationFrame(() => { draw(); done(true); }));

  const plain = (m) => ({ b: [0, 0], mechanism: "softmax", causal: false, regime: "tokens", R: 1, ...m });
  return {
    ready,
    state: () => structuredClone(state),
    timings: () => [...timings],
    // the numbers of any model, for whoever wants to check them
    compute: (given) => {
      const m = plain(given), { constant, move, split, atom, typical, right, left, f, distinct } = measured(m);
      return { constant, move, split, atom, typical, distinct, right: [...right], left: [...left], outputs: f.outputs, weights: [...f.weights], ...bounds(m), limit: farLimit(m) };
    },
    bestKnown: (m, place = "disk") => bestKnown(plain(m), place),
    bestMass: (m) => bestMass(plain(m)),
    secant: (m, i, y) => secant(plain(m), i, y),
    wasserstein,
    trueRatio: (m, before, after) => trueRatio(plain(m), before, after),
  };
})();
window.lab = lab;
window.howsmooth = lab;
