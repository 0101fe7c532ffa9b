"use strict";

const game = JSON.parse(document.getElementById("game").textContent);
const [kinds, nodes, parents, levels] = game.moves;
const [LOAD, STORE, COMPUTE, DELETE] = [0, 1, 2, 3];
const NAMES = ["load", "store", "compute", "delete"];
const SPEEDS = [1, 2, 5, 10, 25, 100, 500];
const RADIUS = 13;
const SNAPSHOT_EVERY = 512; // moves between two snapshots of the state, which make going back fast
const count = kinds.length, size = game.labels.length, slow = game.capacities.length;
const $ = (id) => document.getElementById(id);

// The state of the game after `at` moves. have: per node, a bit per level that holds it. -------------
let state = start();
const snapshots = [copy(state)];

function start() {
  const have = new Uint8Array(size);
  for (const v of game.blue) have[v] = 1 << slow;
  return { at: 0, have, dark: new Uint8Array(size), marked: new Set(), held: game.capacities.map(() => 0), loads: 0, stores: 0, computes: 0, cost: 0 };
}

function copy(s) {
  return { ...s, have: s.have.slice(), dark: s.dark.slice(), marked: new Set(s.marked), held: s.held.slice() };
}

function put(v, level) {
  if (!(state.have[v] >> level & 1) && level < slow) state.held[level] += game.words[v];
  state.have[v] |= 1 << level;
}

function take(v, level) {
  state.have[v] &= ~(1 << level);
  if (level < slow) state.held[level] -= game.words[v];
}

function advance() {
  const i = state.at++, v = nodes[i], level = levels[i], words = game.words[v];
  if (kinds[i] === LOAD) {
    put(v, level);
    state.loads += words;
    state.cost += game.loadCosts[level] * words;
  } else if (kinds[i] === STORE) {
    put(v, level + 1);
    state.dark[v] = 0;
    state.stores += words;
    state.cost += game.storeCosts[level] * words;
  } else if (kinds[i] === DELETE) {
    take(v, level);
    state.dark[v] = 0;
  } else {
    if (game.partial) {
      if (parents[i] >= 0) state.marked.add(parents[i] * size + v);
      state.have[v] &= ~(1 << slow);
      state.dark[v] = 1;
    } else if (parents[i] >= 0) {
      take(parents[i], 0);
    }
    put(v, 0);
    state.computes++;
    state.cost += game.computeCost;
  }
  if (state.at % SNAPSHOT_EVERY === 0 && snapshots.length === state.at / SNAPSHOT_EVERY) snapshots.push(copy(state));
}

function go(to) {
  to = Math.max(0, Math.min(count, to));
  if (to < state.at) state = copy(snapshots[Math.floor(to / SNAPSHOT_EVERY)]);
  while (state.at < to) advance();
  show();
}

// Drawing -------------------------------------------------------------------------------------------
function svg(name, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

// Draw a disc in equal sectors, one per colour.
function fill(group, colours, radius) {
  group.replaceChildren();
  if (colours.length === 1) svg("circle", { r: radius, style: `fill: var(--${colours[0]})` }, group);
  colours.length > 1 && colours.forEach((colour, i) => {
    const [a, b] = [i, i + 1].map((part) => (0.5 + part / colours.length) * 2 * Math.PI);
    const point = (angle) => `${radius * Math.sin(angle)} ${radius * Math.cos(angle)}`;
    svg("path", { d: `M0 0L${point(a)}A${radius} ${radius} 0 0 0 ${point(b)}Z`, style: `fill: var(--${colour})` }, group);
  });
}

function colours(have, dark) {
  const names = have & 1 ? [dark ? "dark" : "red"] : [];
  for (let level = 1; level < slow; level++) if (have >> level & 1) names.push("between");
  if (have >> slow & 1) names.push("blue");
  return names;
}

const xs = game.positions.map((p) => p[0]), ys = game.positions.map((p) => p[1]);
const left = Math.min(...xs), wide = Math.max(...xs) - left, tall = Math.max(...ys);
const STEP = Math.max(46, Math.min(72, 1100 / (wide + 1.2)));
const picture = svg("svg", { width: (wide + 1.2) * STEP, height: (tall + 1) * 1.4 * STEP, role: "img", "aria-label": "Computation graph with pebbles" });
$("drawn").append(picture);
const point = (v) => [(xs[v] - left + 0.6) * STEP, (ys[v] * 1.4 + 0.6) * STEP];
const edges = new Map();
game.parents.forEach((own, v) => own.forEach((p) => {
  const [[x1, y1], [x2, y2]] = [point(p), point(v)];
  edges.set(p * size + v, svg("line", { x1, y1, x2, y2, class: "edge" }, picture));
}));
const sinks = new Set(game.sinks);
const discs = game.labels.map((label, v) => {
  const group = svg("g", { transform: `translate(${point(v).join(" ")})` }, picture);
  svg("circle", { r: RADIUS, style: "fill: var(--paper)" }, group);
  const filled = svg("g", {}, group);
  svg("circle", { r: RADIUS, class: "rim" }, group);
  svg("title", {}, group).textContent = label;
  if (label.length < 9) svg("text", { y: RADIUS + 10 }, group).textContent = label;
  return { group, filled, drawn: -1, now: false };
});

const bars = game.capacities.map((capacity, level) => {
  const bar = document.createElement("div");
  bar.className = level ? "bar between" : "bar";
  bar.innerHTML = '<span class="name"></span><div class="track"><div class="held"></div></div><span class="count"></span>';
  bar.querySelector(".name").textContent = level ? `Level ${level}` : "Red pebbles";
  $("bars").append(bar);
  return { held: bar.querySelector(".held"), count: bar.querySelector(".count"), capacity };
});

const legend = [["red"], ["blue"], ["red", "blue"]];
const meanings = ["red: in the cache", "blue: in slow memory", "in both"];
if (game.partial) legend.push(["dark"]), meanings.push("dark red: only in the cache");
if (slow > 1) legend.push(["between"]), meanings.push("in a level between cache and slow memory");
legend.forEach((parts, i) => {
  const item = document.createElement("li");
  const icon = svg("svg", { width: 20, height: 20, viewBox: "-10 -10 20 20", "aria-hidden": "true" });
  fill(svg("g", {}, icon), parts, 9);
  svg("circle", { r: 9, class: "rim" }, icon);
  item.append(icon, meanings[i]);
  $("key").append(item);
});
const dashed = document.createElement("li");
dashed.textContent = "dashed rim: an output";
$("key").append(dashed);

function describe(i) {
  if (i < 0) return `Start: the inputs are in slow memory.`;
  const v = nodes[i], name = game.labels[v], level = slow > 1 ? ` (level ${levels[i]})` : "";
  if (kinds[i] !== COMPUTE) return `${NAMES[kinds[i]]} ${name}${level}`;
  if (parents[i] >= 0) return game.partial ? `aggregate ${game.labels[parents[i]]} into ${name}` : `compute ${name}, whose pebble slides from ${game.labels[parents[i]]}`;
  const operands = game.parents[v].map((p) => game.labels[p]);
  return `compute ${name}${operands.length ? " from " + operands.join(", ") : ""}`;
}

let bright = [];
function show() {
  const i = state.at - 1, current = i < 0 ? -1 : nodes[i];
  discs.forEach((disc, v) => {
    const now = v === current, key = state.have[v] * 2 + state.dark[v];
    if (disc.drawn !== key) fill(disc.filled, colours(state.have[v], state.dark[v]), RADIUS);
    if (disc.drawn === key && disc.now === now) return;
    disc.group.setAttribute("class", [state.have[v] & 1 ? "red" : "", sinks.has(v) ? "sink" : "", now ? "now" : ""].join(" "));
    [disc.drawn, disc.now] = [key, now];
  });
  bright.forEach((line) => line.classList.remove("now"));
  bright = i >= 0 && kinds[i] === COMPUTE
    ? (game.partial && parents[i] >= 0 ? [parents[i]] : game.parents[current]).map((p) => edges.get(p * size + current)) : [];
  bright.forEach((line) => line.classList.add("now"));
  if (game.partial) edges.forEach((line, key) => line.classList.toggle("marked", state.marked.has(key)));
  bars.forEach((bar, level) => {
    bar.held.style.width = `${100 * state.held[level] / bar.capacity}%`;
    bar.count.textContent = `${state.held[level]} of ${bar.capacity}`;
  });
  $("at").textContent = `${state.at} of ${count}`;
  for (const name of ["loads", "stores", "computes"]) $(name).textContent = state[name];
  $("cost").textContent = +state.cost.toFixed(6);
  $("place").value = state.at;
  $("move").textContent = describe(i) + (state.at === count ? ". End." : "");
}

// Playing --------------------------------------------------------------------------------------------
let playing = false, lastFrame = 0, movesDue = 0;
const speed = $("speed");
SPEEDS.forEach((perSecond) => speed.add(new Option(`${perSecond} moves/s`, perSecond)));
speed.value = count > 2000 ? 100 : count > 200 ? 10 : 5;

function play(on) {
  if (on && state.at === count) go(0);
  playing = on;
  $("play").textContent = on ? "Pause" : "Play";
  $("move").setAttribute("aria-live", on ? "off" : "polite");
  [lastFrame, movesDue] = [performance.now(), 0];
  if (on) requestAnimationFrame(frame);
}

function frame(now) {
  if (!playing) return;
  movesDue += (now - lastFrame) / 1000 * speed.value;
  lastFrame = now;
  if (movesDue >= 1) {
    go(state.at + Math.floor(movesDue));
    movesDue %= 1;
  }
  if (state.at === count) play(false);
  else requestAnimationFrame(frame);
}

// Go to the next or the previous load or store.
function jump(direction) {
  let to = state.at + direction;
  while (to > 0 && to < count && kinds[to - 1] > STORE) to += direction;
  go(to);
}

const actions = {
  " ": () => play(!playing),
  ArrowLeft: (event) => event.shiftKey ? jump(-1) : go(state.at - 1),
  ArrowRight: (event) => event.shiftKey ? jump(1) : go(state.at + 1),
  Home: () => go(0),
  End: () => go(count),
  "+": () => { speed.selectedIndex = Math.min(SPEEDS.length - 1, speed.selectedIndex + 1); },
  "-": () => { speed.selectedIndex = Math.max(0, speed.selectedIndex - 1); },
};
document.addEventListener("keydown", (event) => {
  const action = actions[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.tagName === "SELECT" || (event.target.tagName === "BUTTON" && event.key === " ")) return; // handled there
  event.preventDefault();
  if (event.key !== " " && event.key !== "+" && event.key !== "-") play(false);
  action(event);
});
for (const [id, key] of [["first", "Home"], ["back", "ArrowLeft"], ["step", "ArrowRight"], ["last", "End"]])
  $(id).addEventListener("click", () => { play(false); actions[key]({}); });
$("play").addEventListener("click", () => play(!playing));
$("place").max = count;
$("place").addEventListener("input", () => { play(false); go(+$("place").value); });
show();
