"use strict";
// D holds columns: index i is an image; reference images follow those that were checked.
const given = JSON.parse(document.getElementById("data").textContent), N = given.n, $ = id => document.getElementById(id);
const zeros = Array(N).fill(0), ones = Array(N).fill(1), none = Object.fromEntries(
  "duplicates sets reference marks random label x y width height light sharpness facts words regions folders near propertyNames about panels shades".split(" ").map(key => [key, []]));
const D = {
  ...none, total: N, judged: false, fixed: false, trusted: false, grouped: "", rate: "none", fdr: 0.1, start: "all", p: ones, q: ones, score: zeros, flag: zeros, seen: zeros,
  leak: zeros, properties: zeros, group: Array(N).fill(-1), groups: 0, leaked: 0, unreadable: 0, most: 1, large: {}, frames: {}, heat: {}, nearest: {},
  folder: null, calibration: null, ...given,
};
const element = (tag, values = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
};
const sentence = text => `${text[0].toUpperCase()}${text.slice(1)}.`, digits = x => +x.toPrecision(3);
const count = n => n.toLocaleString("en-US"), all = Array.from({ length: N }, (_, i) => i);
const before = new Map(D.marks.map(([i, what]) => [i, what.replace("reference ", "")]));  // of an earlier call
const verdict = new Map(before), chosen = new Set();
const FIRST = 20;  // images to check where none is flagged
const decides = D.judged && D.rate !== "none";  // else there is an order alone
let state = { filter: D.start, text: "", well: "", sort: "score", first: 1, lasso: null }, view = [], p = D.p, q = D.q, flag = D.flag;
let shownPairs = [];  // in the view of duplicates, which holds both images of each pair in turn
const inPairs = () => state.filter === "pair" || (state.filter === "leak" && leakedInPairs);

// Thumbnails: sheets of tiles
const { side, across } = D.tiles, perSheet = across * across;
const sheets = D.sheets.map(text => {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/webp" }));
});
const image = (i, size) => {
  const made = element("span", { className: "image" }), place = i % perSheet, scale = size / side;
  made.style.cssText = `width:${size}px;height:${size}px`;
  if (!sheets.length) return made;
  made.style.backgroundImage = `url(${sheets[Math.floor(i / perSheet)]})`;
  made.style.backgroundSize = `${across * size}px`;
  made.style.backgroundPosition = `${-(place % across) * side * scale}px ${-Math.floor(place / across) * side * scale}px`;
  return made;
};

// Marks change p-values and flags
const rank = (values, m, zeros) => {  // q-values of Benjamini and Hochberg, of m hypotheses: more p-values are 0, the others larger
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]), out = Array(values.length);
  let least = 1;
  for (let r = order.length; r > 0; r--) out[order[r - 1]] = least = Math.min(least, values[order[r - 1]] * m / (r + zeros));
  return out;
};
const review = () => {
  if (!decides || D.fixed) return;
  [p, q, flag] = [D.p, D.q, D.flag];
  if (verdict.size === before.size && [...before].every(([i, what]) => verdict.get(i) === what)) return;
  // marked anomalies are discoveries: they count with p = 0
  const is = (i, what) => verdict.get(i) === what, known = all.filter(i => is(i, "anomaly") && !D.seen[i]).length;
  const rest = all.filter(i => !is(i, "anomaly") && !D.seen[i]), m = rest.length + known + D.total - N;
  p = D.p.slice();
  if (D.calibration) {
    // c reference images are at least as far as an image: those of rank 1..c; anomalies among them no longer count
    const ranks = D.grouped ? [] : D.reference.map((e, k) => is(e, "anomaly") ? k + 1 : 0).filter(Boolean), n = D.calibration;
    if (ranks.length) all.forEach(i => {
      const c = Math.round(p[i] * (n + 1)) - 1;
      p[i] = (1 + c - ranks.filter(rank => rank <= c).length) / (n - ranks.length + 1);
    });
  } else {
    const normal = all.filter(i => is(i, "normal")).map(i => D.p[i]), others = D.total - all.filter(i => is(i, "anomaly")).length;
    if (normal.length) all.forEach(i => { p[i] = Math.max(p[i], normal.filter(f => f <= D.p[i]).length / others); });
  }
  const found = rank(rest.map(i => p[i]), m, known);
  q = Array(N).fill(1);
  flag = Array(N).fill(0);
  rest.forEach((i, k) => {
    q[i] = found[k];
    flag[i] = +(q[i] <= D.fdr * (1 + 1e-9) && !is(i, "normal"));
  });
};
const say = (i, what) => {
  if (i >= N && what === "normal") what = "";
  what ? verdict.set(i, what) : verdict.delete(i);
  keep();
  review();
  draw();
};
const keep = () => {  // at once; an empty text takes back the mark of an earlier call
  const kept = new Map([...[...before.keys()].map(i => [i, ""]), ...verdict]);
  try { localStorage.setItem(D.key, JSON.stringify([...kept].map(([i, what]) => [D.name[i], what, i >= N]))); }
  catch { $("reviewed").title = "The browser does not keep marks when the page is closed; save them."; }
};
const restore = () => {
  try {
    const place = new Map(D.name.map((name, i) => [`${name}\0${i >= N}`, i]));
    for (const [name, what, other] of JSON.parse(localStorage.getItem(D.key) || "[]")) {
      const i = place.get(`${name}\0${other}`);
      if (i !== undefined) what ? verdict.set(i, what) : verdict.delete(i);
    }
  } catch { /* nothing was kept */ }
  review();
};

// Filters
const pairs = new Map();
const agrees = (kind, agreement) => kind === "exact" ? kind : `${kind}, agreement ${(Math.floor(1000 * agreement) / 1000).toFixed(3)} of 1`;
for (const [i, j, kind, agreement] of D.duplicates)
  for (const [a, b] of [[i, j], [j, i]]) pairs.set(a, [...(pairs.get(a) || []), [b, agrees(kind, agreement)]]);
const ofReference = ([, j]) => j >= N;
const leakedInPairs = all.every(i => !D.leak[i] || (pairs.get(i) || []).some(([j]) => j >= N));  // else some are not on the page
const has = bit => i => (D.properties[i] >> bit) & 1;
const filters = [["all", "All", () => true]];
if (decides) filters.push(["flag", "Flagged", i => flag[i]]);
if (D.judged) filters.push(["first", "The first", i => place()[i] < state.first]);
if (Object.keys(D.frames).length) filters.push(["framed", "With frames", i => D.frames[i]]);
if (D.judged) filters.push(["group", "In groups", i => D.group[i] >= 0]);
if (D.duplicates.length) filters.push(["pair", "Pairs of duplicates", i => pairs.has(i)]);
if (D.label.length) filters.push(["label", D.trusted ? "Wrong label" : "Another label fits better", i => D.label[i][2]]);
if (D.leaked) filters.push(["leak", "Leaked", i => D.leak[i]]);
D.propertyNames.forEach((name, bit) => filters.push([`is ${name}`, name[0].toUpperCase() + name.slice(1), has(bit)]));
for (const mark of ["anomaly", "normal"]) filters.push([mark, `Marked ${mark === "normal" ? "normal" : "as anomaly"}`, i => verdict.get(i) === mark]);
filters.push(["chosen", "Selected", i => chosen.has(i)]);
const buttons = new Map(filters.map(([key, title]) => {
  const made = element("button", { type: "button", textContent: title });
  made.addEventListener("click", () => { state = { ...state, filter: key, lasso: null }; draw(true); });
  $("filters").append(made);
  return [key, made];
}));
const button = (title, act) => {
  const made = element("button", { type: "button", textContent: title });
  made.addEventListener("click", act);
  $("filters").append(made);
  return made;
};
const reference = D.reference.length ? button(`Most anomalous reference ${D.noun}s (${D.reference.length})`, () => {
  state = { ...state, filter: "reference", lasso: null };
  draw(true);
}) : null;
if ($("unreadable")) button(`Unreadable (${count(D.unreadable)})`, () => $("unreadable").scrollIntoView());

// Order
const sorts = {
  score: i => -D.score[i], light: i => D.light[i], area: i => D.width[i] * D.height[i], sharpness: i => D.sharpness[i],
  random: i => D.random[i], label: i => -D.label[i][1],
};
const orders = {};
const ordered = name => orders[name] ||= name === "name"
  ? all.slice().sort((a, b) => D.name[a] < D.name[b] ? -1 : 1)
  : all.slice().sort((a, b) => sorts[name](a) - sorts[name](b) || a - b);
const places = {};  // of each image in an order
const place = (name = "score") => {
  if (!places[name]) ordered(name).forEach((i, k) => { (places[name] ||= Array(N))[i] = k; });
  return places[name] || [];
};
const sideBySide = keeps => {  // the surest pairs first, or in the order of the earlier image of each
  const at = state.sort === "score" ? null : place(state.sort), earlier = ([i, j]) => Math.min(at[i], at[j] ?? N);
  shownPairs = D.duplicates.filter(pair => (keeps(pair[0]) || keeps(pair[1])) && (state.filter === "pair" || ofReference(pair)));
  if (at) shownPairs.sort((a, b) => earlier(a) - earlier(b));
  return shownPairs.flatMap(([i, j]) => [i, j]);
};
const select = () => {
  const text = state.text.toLowerCase();
  const named = i => state.well ? D.name[i].startsWith(`${state.well} `) : !text || `${D.name[i]} ${D.about[i] || ""}`.toLowerCase().includes(text);
  if (state.filter === "reference") return D.reference.filter(named);
  const inside = i => !state.lasso || state.lasso.has(i);
  if (inPairs()) return sideBySide(i => named(i) && inside(i));
  const keeps = filters.find(([key]) => key === state.filter)[2];
  let order = ordered(state.sort);
  if (state.filter === "group" && state.sort === "score")
    order = order.filter(i => D.group[i] >= 0).sort((a, b) => D.group[a] - D.group[b]);
  return order.filter(i => keeps(i) && named(i) && inside(i));
};

// Grid: only what is on the screen is in the document
const grid = $("grid"), gap = 6;
let size = 0, columns = 1, focused = -1;
const bare = !sheets.length;  // rows, without images
const pairWords = (k, i) => {
  const words = [i < N ? "" : "reference", D.width[i] ? pixels(i) : "", shownPairs[k >> 1][4] === k % 2 ? "keep this one" : ""];
  return words.filter(Boolean).join(", ");
};
const pixels = i => `${count(D.width[i])} x ${count(D.height[i])} pixels`;
const labels = i => {  // its own, and the one that fits best among the others
  const [other, margin, , own] = D.label[i];
  return margin > 0 ? `${own}, but ${other} fits better` : `${own}, which fits better than ${other}`;
};
const tile = (k, i, move) => {
  const made = element("button", { type: "button", className: "tile", tabIndex: k === Math.max(focused, 0) ? 0 : -1 });
  made.dataset.k = k;
  made.dataset.i = i;
  const label = i < N && [state.filter, state.sort].includes("label") && D.label[i]?.[0];
  const why = inPairs() ? pairWords(k, i) : i >= N ? "reference" : label ? labels(i) : D.reason[i];
  const score = i < N && D.ranked ? `score ${digits(D.score[i])}` : " ";
  made.append(...(bare ? [] : [image(i, size)]), element("span", { className: "name", textContent: D.name[i] }));
  made.append(element("span", { className: "why", textContent: why || score }));
  made.setAttribute("aria-label", `${D.name[i]}${why ? `, ${why}` : ""}${verdict.has(i) ? `, marked ${verdict.get(i)}` : ""}`);
  made.title = why ? `${D.name[i]}: ${why}` : D.name[i];
  if (i < N && flag[i]) made.classList.add("flag");
  if (chosen.has(i)) made.classList.add("chosen");
  if (verdict.has(i)) made.append(element("span", { className: `verdict ${verdict.get(i)}`, textContent: verdict.get(i) }));
  move(made);
  return made;
};
const layout = () => {
  const width = grid.clientWidth || 800;
  const wanted = bare ? 220 : Math.max(128, Math.min(side, 160));  // the narrowest that a reason can be read in
  columns = Math.max(2, Math.floor((width + gap) / (wanted + 10 + gap)));
  if (inPairs()) columns -= columns % 2;
  size = Math.floor((width + gap) / columns) - gap - 10;
};
const head = () => inPairs() ? 30 : 0;  // pixels above a pair, for the words about it
const high = () => head() + (bare ? 0 : size) + 10 + 50 + gap;
const paint = (from = null, to = null) => {
  const top = grid.getBoundingClientRect().top, h = high();
  const first = Math.max(0, from ?? (Math.floor(-top / h) - 1) * columns);
  const last = Math.min(view.length, to ?? (Math.ceil((innerHeight - top) / h) + 1) * columns);
  const held = document.activeElement?.dataset?.k;
  const made = [];
  for (let k = first; k < last; k++) {
    const left = (k % columns) * (size + 10 + gap), y = Math.floor(k / columns) * h;
    if (inPairs() && k % 2 === 0) {
      const [, , kind, agreement] = shownPairs[k >> 1], around = element("div", { className: "pair", textContent: agrees(kind, agreement) });
      around.style.cssText = `left:${left}px;top:${y}px;width:${2 * (size + 10) + gap}px;height:${h - gap}px`;
      made.push(around);
    }
    made.push(tile(k, view[k], t => { t.style.cssText = `left:${left}px;top:${y + head()}px;width:${size + 10}px`; }));
  }
  const inside = state.filter === "all" && !state.lasso ? "" : " in this list";
  const nothing = state.text ? `No name${inside} contains “${state.text}”.` : `There are no ${D.noun}s${inside}.`;
  grid.replaceChildren(...made, ...(view.length ? [] : [element("p", { textContent: nothing })]));
  if (held !== undefined) grid.querySelector(`[data-k="${held}"]`)?.focus({ preventScroll: true });
};
const draw = (fresh = false) => {
  layout();
  if (fresh) focused = -1;
  view = select();
  grid.classList.toggle("pairs", inPairs());
  grid.style.height = `${Math.ceil(Math.max(view.length, 1) / columns) * high()}px`;
  for (const [key, title, keeps] of filters) {
    const n = key === "all" ? N : key === "pair" ? D.duplicates.length : all.reduce((sum, i) => sum + (keeps(i) ? 1 : 0), 0);
    const made = buttons.get(key);
    made.textContent = `${title} (${count(n)})`;
    made.hidden = !n && key !== "flag";
    made.setAttribute("aria-pressed", state.filter === key);
  }
  reference?.setAttribute("aria-pressed", state.filter === "reference");
  const lasso = state.lasso ? " inside your line on the map" : "";
  $("shown").textContent = inPairs() ? `${count(shownPairs.length)} of ${count(state.filter === "pair" ? D.duplicates.length : D.duplicates.filter(ofReference).length)} pairs shown${lasso}`
    : `${count(view.length)} of ${count(N)} ${D.noun}s shown${lasso}`;
  $("save-list").disabled = !view.length;
  $("save-review").disabled = !verdict.size;
  const flags = flag.reduce((sum, f) => sum + f, 0);
  $("reviewed").textContent = verdict.size
    ? `Marked: ${["anomaly", "normal"].map(what => `${[...verdict.values()].filter(v => v === what).length} ${what}`).join(", ")}. `
      + (D.noun === "site" ? "Save them, then repeat the command with --confirm confirmed.csv." : decides ? `${count(flags)} flagged.`
        : D.judged ? progress() : "")
    : D.ranked && (!D.fixed || D.noun === "site") ? "To mark one, open it, then press a (anomaly) or n (normal)." : "";
  expected();
  if (fresh) toTop();
  paint();
  points();
};
const under = () => document.querySelector(".tools").getBoundingClientRect().bottom;  // what the list can be hidden by
const toTop = () => scrollBy(0, Math.min(0, grid.getBoundingClientRect().top - under()));  // a new list is seen from its first
const progress = () => {
  const first = ordered("score").slice(0, state.first), n = first.filter(i => verdict.get(i) === "anomaly").length;
  return `You marked ${count(n)} of the first ${count(first.length)} as anomal${n === 1 ? "y" : "ies"}.`;
};
const expected = () => {
  if (!D.judged || !N) { $("budget").hidden = true; return; }
  const k = state.first, last = ordered("score")[k - 1], rest = D.total - [...verdict.values()].filter(v => v === "anomaly").length;
  const number = rest * p[last], about = number < 10 ? +number.toPrecision(2) : count(Math.round(number));
  $("expected").textContent = !decides ? count(k)
    : `${count(k)}: of ${count(rest)} normal ${D.noun}s about ${about} would be as ${D.fixed ? "anomalous" : "far from the reference"}`;
  $("first").setAttribute("aria-valuetext", $("expected").textContent);
};

// One image, large
const large = $("large");
let current = 0, at = 0, marked = true, original = 0;
const small = list => element("div", { className: "small" }, ...list.map(([i, what]) => {
  const words = what || (bare ? D.name[i] : "");
  const made = element("button", { type: "button", title: D.name[i] }, ...(bare ? [] : [image(i, 84)]));
  if (words) made.append(element("span", { className: "why", textContent: words }));
  made.setAttribute("aria-label", `${D.name[i]}${what ? `, ${what}` : ""}`);
  made.addEventListener("click", () => open(i));
  return made;
}));
const ofWhat = D.calibration ? "of the reference that is less anomalous" : D.rate === "none" ? `of the ${D.noun}s here that are less anomalous`
  : `of normal ${D.noun}s that differ less, an assumption`;
const sets = i => {  // bars from 0 to 100 %
  const rows = D.sets.map(([, title, values]) => {
    const share = Math.min(99.9, 100 * (1 - Math.exp(-values[i]))), much = `${Math.floor(share)} %`;
    const inner = element("div"), bar = element("div", { className: "bar" }, inner);
    inner.style.width = `${share}%`;
    return element("div", { className: "set" }, element("span", { textContent: title }), element("b", { textContent: much }), bar);
  });
  const ends = element("div", { className: "ends" }, ...["0 %", "50 %", "100 %"].map(textContent => element("span", { textContent })));
  return rows.length ? [element("h2", { textContent: `Share ${ofWhat}` }), ...rows, ends] : [];
};
const facts = i => D.facts.length ? D.facts[i].map(([m, high, share]) => `${D.words[m][high]} than ${D.words[m][high].includes(" border ") ? "in " : ""}${share} % of ${D.noun}s`) : [];
const show = () => {
  const i = current, about = $("about");
  $("large-name").textContent = D.name[i];
  const image = element("img", { alt: D.name[i] }), holder = $("canvas"), ticket = ++original;
  if (D.large[i]) image.src = `data:image/webp;base64,${D.large[i]}`;
  const first = bare || D.large[i] ? image : cut(i);
  holder.replaceChildren(...(bare ? [] : [first]), ...(marked && D.heat[i] ? [heatmap(D.heat[i])] : []), ...(marked ? (D.frames[i] || []) : []).map(([top, left, bottom, right]) => {
    const frame = element("div", { className: "frame" });
    frame.style.cssText = `top:${100 * top}%;left:${100 * left}%;height:${100 * (bottom - top)}%;width:${100 * (right - left)}%`;
    return frame;
  }), ...(D.large[i] ? D.panels : []).map(([name, top, left]) => {
    const label = element("div", { className: "panel", textContent: name });
    label.style.cssText = `top:${100 * top}%;left:${100 * left}%`;
    return label;
  }));
  $("large-note").textContent = D.frames[i]?.length ? "Frames mark anomalous regions." : "";
  if (D.folder !== null && i < N) {
    const whole = new Image();
    whole.onload = () => { if (ticket === original) { image.src = whole.src; first.replaceWith(image); } };
    whole.onerror = () => { if (ticket === original) $("large-note").textContent += " The original file was moved; this is a smaller version."; };
    whole.src = D.folder + D.name[i].split("/").map(encodeURIComponent).join("/");
  }
  about.replaceChildren();
  const line = text => about.append(element("p", { textContent: text }));
  if (verdict.has(i)) line(`Marked: ${verdict.get(i)}.`);
  if (D.width[i]) line(`${pixels(i)}.`);
  if (D.about[i]) line(sentence(D.about[i]));
  if (i < N) {
    if (D.reason[i]) line(sentence(D.reason[i]));
    if (D.ranked && !decides) line(`Score ${digits(D.score[i])}: larger is more anomalous.`);
    if (decides) line(`Score ${digits(D.score[i])}, p = ${digits(p[i])}, q = ${digits(q[i])}${flag[i] ? ": flagged" : ""}.`);
    if (D.label.length && D.label[i][0]) line(`Label: ${labels(i)}.`);
    about.append(...sets(i));
    facts(i).map(sentence).forEach(line);
    if (D.nearest[i]) about.append(element("h2", { textContent: "Its reference image" }), small([[D.nearest[i], ""]]));
    const near = D.near[i] || [];
    if (near.length) about.append(element("h2", { textContent: decides ? "Nearest that are not flagged" : "Nearest" }), small(near.map(j => [j, ""])));
  } else line("A reference image.");
  const duplicates = pairs.get(i) || [];
  if (duplicates.length) about.append(element("h2", { textContent: "Duplicates" }), small(duplicates.slice(0, 12)));
  $("marks").hidden = !(D.frames[i] || []).length && !D.heat[i];
  $("marks").setAttribute("aria-pressed", marked);
};
const heatmap = text => {  // how opaque each cell is, row by row
  const bytes = atob(text), wide = D.heatWide || Math.sqrt(bytes.length), high = bytes.length / wide;
  const made = element("canvas", { className: "heat", width: wide, height: high });
  const context = made.getContext("2d"), x = context.createImageData(wide, high);
  for (let k = 0; k < bytes.length; k++) x.data.set([255, 60, 0, bytes.charCodeAt(k)], 4 * k);
  context.putImageData(x, 0, 0);
  return made;
};
const cut = i => {  // a tile without its gray border
  const scale = side / Math.max(D.width[i], D.height[i]);
  const [w, h] = [D.width[i], D.height[i]].map(n => n ? Math.max(1, Math.round(scale * n)) : side), zoom = 256 / Math.max(w, h);
  const made = image(i, side * zoom), place = i % perSheet;
  const x = (place % across) * side + Math.floor((side - w) / 2), y = Math.floor(place / across) * side + Math.floor((side - h) / 2);
  Object.assign(made.style, { width: `${w * zoom}px`, height: `${h * zoom}px`, backgroundPosition: `${-x * zoom}px ${-y * zoom}px` });
  return made;
};
const open = (i, k = view.indexOf(i)) => {
  current = i;
  at = k;
  show();
  if (!large.open) large.showModal();
};
const step = by => {
  if (view[at] !== current) at = view.includes(current) ? view.indexOf(current) : at - (by > 0);  // it is shown no longer
  const next = Math.min(view.length - 1, Math.max(0, at + by));
  if (view.length) open(view[next], next);
};
$("before").addEventListener("click", () => step(-1));
$("after").addEventListener("click", () => step(1));
const toggle = () => { marked = !marked; show(); };
$("marks").addEventListener("click", toggle);
for (const made of large.querySelectorAll("[data-say]"))
  made.addEventListener("click", () => { say(current, made.dataset.say); show(); });
const words = D.ranked ? { a: "anomaly", n: "normal", u: "" } : {};  // else there is nothing that a mark would change
for (const made of [...large.querySelectorAll("[data-say]"), $("save-review"), $("mark-keys")]) made.hidden = !D.ranked;
large.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
  else if (event.key in words) { say(current, words[event.key]); show(); }
  else if (event.key === "m") toggle();
  else return;
  event.preventDefault();
});
large.addEventListener("close", () => focusOn(Math.max(0, view[at] === current ? at : view.indexOf(current))));
const focusOn = k => {
  focused = Math.max(0, Math.min(view.length - 1, k));
  const top = grid.getBoundingClientRect().top + Math.floor(focused / columns) * high();
  if (top < under() || top + high() > innerHeight) scrollBy(0, top - Math.max(under(), 0) - 20);
  paint();
  grid.querySelector(`[data-k="${focused}"]`)?.focus({ preventScroll: true });
};
grid.addEventListener("click", event => {
  const made = event.target.closest(".tile");
  if (!made) return;
  const i = Number(made.dataset.i);
  focused = Number(made.dataset.k);
  if (event.ctrlKey || event.metaKey) choose(i);
  else open(i, focused);
});
const choose = i => { chosen.has(i) ? chosen.delete(i) : chosen.add(i); draw(); };
grid.addEventListener("keydown", event => {
  const made = event.target.closest(".tile");
  if (!made || event.ctrlKey || event.metaKey || event.altKey) return;
  const k = Number(made.dataset.k), i = Number(made.dataset.i);
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -k, End: view.length }[event.key];
  if (move !== undefined) focusOn(k + move);
  else if (event.key in words) say(i, words[event.key]);
  else if (event.key === "s") choose(i);
  else return;
  event.preventDefault();
});

// Files
const csv = text => {
  const safe = /^'*[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
const save = (name, text) => {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: "text/plain" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1e4);
};
$("save-list").addEventListener("click", () => save("list.txt", [...new Set(view)].map(i => `${D.name[i]}\n`).join("")));
$("save-review").addEventListener("click", () => {  // with the rank of each in this list, of those marked before none
  const rank = N === D.total && D.ranked ? new Map(ordered("score").filter(i => !before.has(i)).map((i, k) => [i, k + 1])) : new Map();
  const row = ([i, what]) => `${csv(D.name[i])},${i >= N ? "reference " : ""}${what},${rank.get(i) || ""}\n`;
  save("confirmed.csv", `path,mark,rank\n${[...verdict].map(row).join("")}`);
});

// Map
const map = $("map"), ramp = ["#3b4cc0", "#6f92f3", "#9dbdf7", "#c0c0c0", "#f2a889", "#e36a53", "#b40426"];
const palette = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7fff", "#999999"];
const scaled = values => {
  const order = all.slice().sort((a, b) => values[a] - values[b]), out = Array(N);
  order.forEach((i, r) => { out[i] = ramp[Math.min(ramp.length - 1, Math.floor(ramp.length * r / N))]; });
  return out;
};
const byScore = () => all.map(i => flag[i] ? "#d55e00" : ramp.slice(1)[Math.max(0, Math.min(2, Math.floor(D.score[i] / 1.5)))]);
const colors = {
  ...(decides ? { score: ["score; orange: flagged", byScore] } : D.ranked ? { score: ["score", () => scaled(D.score)] } : {}),
  ...(D.groups ? { group: ["group", () => all.map(i => D.group[i] < 0 ? "#b0b0b0" : palette[D.group[i] % 8])] } : {}),
  ...(D.folders.length ? { folder: [D.folderWord, () => all.map(i => palette[D.inFolder[i] % 9])] } : {}),
  ...(D.light.length ? { light: ["brightness", () => scaled(D.light)], sharpness: ["sharpness", () => scaled(D.sharpness)] } : {}),
  marks: ["your marks", () => all.map(i => ({ anomaly: "#d55e00", normal: "#009e73" })[verdict.get(i)] || "#b0b0b0")],
};
for (const [value, [title]] of Object.entries(colors)) $("color").append(element("option", { value, textContent: title }));
let line = [];
const wide = map.width, spot = i => [12 + D.x[i] * (wide - 24), 12 + (1 - D.y[i]) * (wide - 24)];
const pack = (hex, alpha) => {
  const n = parseInt(hex.slice(1), 16);
  return (alpha << 24 | (n & 255) << 16 | n & 65280 | n >> 16) >>> 0;
};
const points = () => {
  if (!D.x.length) return;
  const context = map.getContext("2d"), inside = new Uint8Array(D.name.length), color = colors[$("color").value][1]();
  const r = N > 5000 ? 3 : N > 800 ? 5 : 8;
  const image = context.createImageData(wide, wide), cells = new Uint32Array(image.data.buffer);
  for (const i of view) inside[i] = 1;
  for (const pass of [0, 1]) {
    const packed = new Map();  // each color as a number
    for (const i of all) {
      if (inside[i] !== pass) continue;
      if (!packed.has(color[i])) packed.set(color[i], pack(color[i], pass ? 255 : 38));
      const [x, y] = spot(i).map(at => Math.round(at - r / 2)), value = packed.get(color[i]);
      for (let row = y; row < y + r; row++) cells.fill(value, row * wide + x, row * wide + x + r);
    }
  }
  context.putImageData(image, 0, 0);
  if (line.length > 1) {
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 2;
    context.beginPath();
    line.forEach(([x, y], k) => k ? context.lineTo(x, y) : context.moveTo(x, y));
    context.stroke();
  }
};
const where = event => {
  const box = map.getBoundingClientRect(), k = wide / box.width;
  return [(event.clientX - box.left) * k, (event.clientY - box.top) * k];
};
const nearest = ([x, y]) => {
  let best = -1, least = 400;
  for (const i of all) {
    const [a, b] = spot(i), d = (a - x) ** 2 + (b - y) ** 2;
    if (d < least) [best, least] = [i, d];
  }
  return best;
};
const within = (polygon, [x, y]) => {
  let inside = false;
  for (let k = 0, l = polygon.length - 1; k < polygon.length; l = k++) {
    const [[a, b], [c, d]] = [polygon[k], polygon[l]];
    if (b > y !== d > y && x < (c - a) * (y - b) / (d - b) + a) inside = !inside;
  }
  return inside;
};
let down = false;
map.addEventListener("pointerdown", event => { down = true; line = [where(event)]; map.setPointerCapture(event.pointerId); });
map.addEventListener("pointermove", event => {
  if (down) { line.push(where(event)); points(); return; }
  const i = nearest(where(event)), hover = $("hover");
  hover.hidden = i < 0;
  if (i < 0) return;
  hover.replaceChildren(image(i, Math.min(side, 128)), element("div", { textContent: D.name[i] }));
  hover.style.left = `${Math.min(event.clientX + 14, innerWidth - 190)}px`;
  hover.style.top = `${Math.min(event.clientY + 14, innerHeight - 170)}px`;
});
map.addEventListener("pointerleave", () => { $("hover").hidden = true; });
map.addEventListener("pointerup", event => {
  down = false;
  if (line.length > 4) {
    state = { ...state, filter: "all", lasso: new Set(all.filter(i => within(line, spot(i)))) };
    draw(true);
  } else {
    const i = nearest(where(event));
    line = [];
    if (state.lasso) { state = { ...state, lasso: null }; draw(true); }
    else if (i >= 0) open(i);
  }
});
$("color").addEventListener("change", points);
$("overview").hidden = !D.regions.length;
for (const i of D.regions) {
  const made = element("button", { type: "button", title: D.name[i] }, image(i, Math.min(side, 72)));
  made.setAttribute("aria-label", `in the middle: ${D.name[i]}`);
  made.addEventListener("click", () => open(i));
  $("regions").append(made);
}
for (const table of document.querySelectorAll(".plate")) {
  const bar = element("span", { className: "image" });
  bar.style.cssText = `display:inline-block;width:8rem;height:.8rem;background:linear-gradient(90deg,${D.shades.join()})`;
  table.before(element("p", { className: "soft" }, "least anomalous ", bar, " most anomalous"));
}
for (const well of document.querySelectorAll("[data-search]")) well.addEventListener("click", () => {
  $("search").value = well.dataset.search;
  state = { ...state, filter: "all", text: well.dataset.search, well: well.dataset.search, lasso: null };
  draw(true);
  document.querySelector(".tools").scrollIntoView();
});
$("search").addEventListener("input", event => { state = { ...state, text: event.target.value, well: "" }; draw(true); });
$("sort").addEventListener("change", event => { state = { ...state, sort: event.target.value }; draw(true); });
$("first").addEventListener("input", event => {
  state = { ...state, filter: "first", sort: "score", lasso: null, first: Number(event.target.value) };
  $("sort").value = "score";
  draw(true);
});
$("first").max = Math.max(1, D.most);
$("first").value = state.first = Math.max(1, Math.min(D.most, D.flag.reduce((sum, f) => sum + f, 0) || FIRST));
for (const option of [...$("sort").options])
  if (!{ score: D.ranked, name: true }[option.value] && !(D[option.value === "area" ? "width" : option.value] || []).length) option.remove();
if (!D.ranked) state.sort = $("sort").value = "name";
if (!N || !D.x.length) document.querySelector("aside").hidden = true;
let waiting = false;
const again = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; paint(); }); } };
addEventListener("scroll", again, { passive: true });
addEventListener("resize", () => draw());
addEventListener("beforeprint", () => paint(0, Math.min(view.length, 120)));
addEventListener("afterprint", () => paint());
restore();
draw(true);
document.documentElement.dataset.ready = N;
