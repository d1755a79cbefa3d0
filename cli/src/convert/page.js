'use strict';
// Times are nanoseconds since the recording's first event.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const canvas = $('lanes'), paint = canvas.getContext('2d');
const LABEL = 180, RULER = 24, LANE = 20, HEAD = 22, MARK = 6, ARROW_ROOM = 16;
const TIME = 0, CPU = 1, TID = 2, EVENT = 3, TEXT = 4, LATE = 5, CHAIN = 6, INTERRUPT = 7;
const END = Math.max(data.end, 1000);
const threads = new Map(data.threads.map(([tid, pid, name]) => [tid, { pid, name }]));
// A thread by its number, or an interrupt by its kind: hardirq, softirq or nmi.
const nameOf = tid => tid === 0 ? 'idle' : typeof tid === 'string' ? `[${tid}]` : tid === null ? '?' : `${threads.get(tid)?.name || '?'} ${tid}`;

// The first index of a sorted array whose value is larger.
function after(sorted, value, from = 0) {
  let to = sorted.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (sorted[middle] > value) to = middle; else from = middle + 1;
  }
  return from;
}

// Wake-ups by their time, and the slowest first.
const wakes = data.wakes.map((wake, at) => ({ at, time: wake[0], cpu: wake[1], waker: wake[2], woken: wake[3], ran: wake[4], on: wake[5] }));
wakes.sort((a, b) => a.time - b.time);
const wakeTimes = Float64Array.from(wakes, wake => wake.time);
const slowest = wakes.filter(wake => wake.ran !== null).sort((a, b) => (b.ran - b.time) - (a.ran - a.time));
// The wake-up that a thread's run began with.
const wakeOfRun = new Map(slowest.map(wake => [`${wake.woken}:${wake.ran}`, wake]));

// ---- lanes ----
class Lane {
  constructor(title, kind, id) {
    Object.assign(this, { title, kind, id, runs: [], points: [], losses: [], waits: [] });
  }
  // Sorted columns, which are searched by halves.
  seal() {
    const runs = this.runs.sort((a, b) => a[0] - b[0]);
    this.from = Float64Array.from(runs, run => run[0]);
    this.to = Float64Array.from(runs, run => run[1]);
    this.busy = new Float64Array(runs.length + 1);
    runs.forEach((run, at) => { this.busy[at + 1] = this.busy[at] + run[1] - run[0]; });
    this.points.sort((a, b) => data.points[a][TIME] - data.points[b][TIME] || a - b);
    this.times = Float64Array.from(this.points, at => data.points[at][TIME]);
    this.late = this.points.filter(at => data.points[at][LATE] !== 0);
    this.waits.sort((a, b) => a.ran - b.ran);
    this.waitEnds = Float64Array.from(this.waits, wake => wake.ran);
    this.lateTimes = Float64Array.from(this.late, at => data.points[at][TIME]);
  }
}

const cpuLanes = new Map(data.cpus.map(cpu => [cpu, new Lane(`CPU ${cpu}`, 'cpu', cpu)]));
const threadLanes = new Map();
function threadLane(tid) {
  if (!threadLanes.has(tid)) threadLanes.set(tid, new Lane(nameOf(tid), 'thread', tid));
  return threadLanes.get(tid);
}
for (const run of data.runs) {
  cpuLanes.get(run[2])?.runs.push(run);
  threadLane(run[3]).runs.push(run);
}
const nowhere = new Lane('no CPU', 'other', null);
data.points.forEach((point, at) => {
  (cpuLanes.get(point[CPU]) || nowhere).points.push(at);
  // A thread has no part in what an interrupt does.
  if (point[TID] > 0 && !point[INTERRUPT]) threadLane(point[TID]).points.push(at);
});
for (const wake of slowest) if (wake.woken > 0) threadLane(wake.woken).waits.push(wake);
for (const loss of data.losses) {
  if (loss[2] === null) cpuLanes.forEach(lane => lane.losses.push(loss)); else cpuLanes.get(loss[2])?.losses.push(loss);
}
const lanes = [...cpuLanes.values()];
if (nowhere.points.length) lanes.push(nowhere);
const byTime = [...threadLanes.values()];
[...lanes, ...byTime].forEach(lane => lane.seal());
// The busiest threads come first.
byTime.sort((a, b) => b.busy.at(-1) - a.busy.at(-1) || b.points.length - a.points.length || a.id - b.id);
const cpuCount = lanes.length;
lanes.push(...byTime);
const place = new Map(lanes.map((lane, at) => [lane.kind + lane.id, at]));

// ---- what is shown ----
const view = { from: 0, to: END, scroll: 0, selected: null, hits: [], hit: -1 };
let shapes = 0, colours = {}, width = 0, height = 0, queued = false;
const scale = () => (view.to - view.from) / Math.max(1, width - LABEL);
const X = time => LABEL + (time - view.from) / scale();
const Y = at => RULER + HEAD + at * LANE + (at >= cpuCount ? HEAD : 0) - view.scroll;
const most = () => Math.max(0, Y(lanes.length) + view.scroll + LANE - height);

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

function colour(tid) {
  return `hsl(${(tid * 137.508) % 360} 55% ${colours.dark ? 45 : 68}%)`;
}

function box(x, y, w, h, fill) {
  paint.fillStyle = fill;
  paint.fillRect(x, y, w, h);
  shapes += 1;
}

function drawRuns(lane, y) {
  const { from, to, busy, runs } = lane, wide = scale();
  let at = after(to, view.from);
  while (at < runs.length && from[at] < view.to) {
    const left = Math.max(LABEL, X(from[at])), right = Math.min(width, X(to[at]));
    const who = lane.kind === 'cpu' ? runs[at][3] : runs[at][2];
    if (right - left >= 1.5) {
      box(left, y + 3, right - left, LANE - 6, lane.kind === 'cpu' ? colour(who) : colour(lane.id));
      if (right - left > 34) label(lane.kind === 'cpu' ? nameOf(who) : `CPU ${who}`, left + 3, y, right - left - 6);
      at += 1;
      continue;
    }
    // One column for all that end in this pixel, as strong as they are busy.
    const edge = view.from + (Math.floor(left - LABEL) + 1) * wide;
    const next = Math.max(at + 1, after(to, edge, at));
    // In a CPU's lane it has the colour of whoever runs in the middle of the pixel.
    const middle = runs[Math.min(next - 1, after(to, edge - wide / 2, at))];
    paint.globalAlpha = Math.min(1, 0.3 + (busy[next] - busy[at]) / wide);
    box(Math.floor(left), y + 3, 1, LANE - 6, colour(lane.kind === 'cpu' ? middle[3] : lane.id));
    paint.globalAlpha = 1;
    at = next;
  }
}

function label(text, x, y, room) {
  paint.save();
  paint.beginPath();
  paint.rect(x, y, room, LANE);
  paint.clip();
  paint.fillStyle = colours.text;
  paint.fillText(text, x, y + LANE / 2);
  paint.restore();
}

// A mark for each pixel that has events.
function drawMarks(times, y, h, fill) {
  const wide = scale();
  let at = after(times, view.from - wide);
  while (at < times.length && times[at] <= view.to) {
    const x = Math.floor(X(times[at]));
    if (x >= LABEL) box(x, y, 1, h, fill);
    at = Math.max(at + 1, after(times, view.from + (x - LABEL + 1) * wide, at));
  }
}

let hatch = null;
function hatching() {
  const tile = new OffscreenCanvas(8, 8), brush = tile.getContext('2d');
  brush.strokeStyle = colours.loss;
  brush.lineWidth = 1.5;
  for (const at of [-8, 0, 8]) { brush.moveTo(at, 8); brush.lineTo(at + 8, 0); }
  brush.stroke();
  return paint.createPattern(tile, 'repeat');
}

// From a thread's wake-up to its run it waits for a CPU: a line, at most one for each pixel.
function drawWaits({ waits, waitEnds }, y) {
  let drawn = LABEL;
  for (let at = after(waitEnds, view.from); at < waits.length && waits[at].time < view.to; at++) {
    const left = Math.max(drawn, X(waits[at].time)), right = Math.min(width, X(waits[at].ran));
    if (right - left < 1) {
      at = Math.max(at, after(waitEnds, view.from + (left + 1 - LABEL) * scale(), at) - 1);
      continue;
    }
    box(left, y + LANE / 2 - 1.5, right - left, 3, colours.wait);
    drawn = right;
  }
}

function drawLane(at) {
  const lane = lanes[at], y = Y(at);
  if (y > height || y < RULER - LANE) return;
  if (at % 2) box(LABEL, y, width - LABEL, LANE, colours.stripe);
  drawRuns(lane, y);
  drawWaits(lane, y);
  drawMarks(lane.times, y + LANE - MARK, 4, colours.weak);
  if (lane.hitTimes) drawMarks(lane.hitTimes, y + 1, LANE - 2, colours.hit);
  drawMarks(lane.lateTimes, y + 1, LANE - 2, colours.late);
  for (const [from, to] of lane.losses) {
    if (to < view.from || from > view.to) continue;
    const left = Math.max(LABEL, X(from)), right = Math.min(width, X(to));
    box(left, y + 1, Math.max(2, right - left), LANE - 2, hatch);
  }
  box(0, y, LABEL, LANE, colours.back);
  label(lane.title, 8, y, LABEL - 14);
}

// ---- arrows ----
function shownWakes() {
  const first = after(wakeTimes, view.from - 1), last = after(wakeTimes, view.to);
  const shown = [];
  // Of many, the slowest: they are what one looks for.
  const limit = Math.floor((width - LABEL) / ARROW_ROOM);
  for (const wake of slowest) {
    if (shown.length === limit) break;
    if (wake.time <= view.to && wake.ran >= view.from) shown.push(wake);
  }
  $('note').textContent = shown.length === limit && last - first > limit ? `${last - first} wake-ups here: the ${shown.length} slowest have arrows` : '';
  return shown;
}

// Both ends are in sight, or the wake-up is the chosen one: of others one would see lines without ends.
function arrow(wake, from, to, chosen) {
  if (from === undefined || to === undefined) return;
  const [x0, y0, x1, y1] = [X(wake.time), Y(from) + LANE / 2, X(wake.ran), Y(to) + LANE / 2];
  if (!chosen && (Math.min(y0, y1) < RULER || Math.max(y0, y1) > height)) return;
  paint.beginPath();
  paint.moveTo(x0, y0);
  paint.lineTo(x1, y1);
  const angle = Math.atan2(y1 - y0, x1 - x0);
  for (const turn of [2.7, -2.7]) {
    paint.moveTo(x1, y1);
    paint.lineTo(x1 + 6 * Math.cos(angle + turn), y1 + 6 * Math.sin(angle + turn));
  }
  paint.stroke();
  shapes += 1;
}

function drawArrows() {
  paint.save();
  paint.beginPath();
  paint.rect(LABEL, RULER, width - LABEL, height);
  paint.clip();
  for (const wake of shownWakes()) {
    const chosen = view.selected?.wake === wake;
    paint.strokeStyle = chosen ? colours.hit : colours.arrow;
    paint.lineWidth = chosen ? 2 : 1;
    paint.globalAlpha = chosen ? 1 : 0.6;
    if (wake.cpu !== wake.on) arrow(wake, place.get('cpu' + wake.cpu), place.get('cpu' + wake.on), chosen);
    arrow(wake, place.get('thread' + wake.waker), place.get('thread' + wake.woken), chosen);
  }
  paint.restore();
}

// ---- the frame ----
function span(ns) {
  const [unit, name] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']].find(([unit]) => Math.abs(ns) >= unit) || [1, 'ns'];
  return `${+(ns / unit).toPrecision(6)} ${name}`;
}

function drawRuler() {
  box(0, 0, width, RULER, colours.back);
  const rough = scale() * 110, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find(times => times * power >= rough) * power);
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
    box(X(time), RULER - 6, 1, 6, colours.weak);
    paint.fillStyle = colours.weak;
    const words = time === 0 ? '0' : span(time);
    if (X(time) + 3 + paint.measureText(words).width < width) paint.fillText(words, X(time) + 3, RULER / 2);
  }
  box(0, RULER - 1, width, 1, colours.line);
  paint.fillStyle = colours.weak;
  paint.fillText(`${span(view.to - view.from)} of ${span(END)}`, 8, RULER / 2);
}

function draw() {
  const ratio = devicePixelRatio || 1, room = canvas.getBoundingClientRect();
  [width, height] = [room.width, room.height];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  }
  const probe = document.createElement('i');
  document.body.append(probe);
  for (const name of ['back', 'text', 'weak', 'line', 'stripe', 'late', 'loss', 'arrow', 'hit', 'wait']) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.font = '12px system-ui, sans-serif';
  paint.textBaseline = 'middle';
  hatch = hatching();
  shapes = 0;
  view.scroll = Math.min(Math.max(0, view.scroll), most());
  box(0, 0, width, height, colours.back);
  lanes.forEach((_, at) => drawLane(at));
  drawArrows();
  if (view.selected) box(X(view.selected.time), RULER, 1, height, colours.hit);
  for (const [at, title] of [[0, `${cpuLanes.size} CPUs`], [cpuCount, `${byTime.length} threads, the busiest first`]]) {
    if (at < lanes.length) label(title, 8, Y(at) - LANE, 400);
  }
  drawRuler();
  Object.assign(document.body.dataset, { drawn: shapes, lanes: lanes.length, from: Math.round(view.from), to: Math.round(view.to) });
}

// ---- moving ----
function show(from, to) {
  const length = Math.min(END, Math.max(100, to - from));
  view.from = Math.min(Math.max(0, from), END - length);
  view.to = view.from + length;
  redraw();
}

// Without a place it is what was selected, if it is in sight.
function zoom(times, at = view.selected?.time) {
  if (!(at >= view.from && at <= view.to)) at = (view.from + view.to) / 2;
  show(at - (at - view.from) * times, at + (view.to - at) * times);
}

function reveal(at, time) {
  const y = Y(at);
  if (y < RULER + HEAD || y > height - 2 * LANE) view.scroll += y - height / 2;
  if (time < view.from || time > view.to) {
    const half = (view.to - view.from) / 2;
    show(time - half, time + half);
  }
  redraw();
}

// ---- the record ----
function rows(title, pairs, text, chain) {
  const heading = document.createElement('h2'), list = document.createElement('dl');
  heading.textContent = title;
  for (const [name, value, look] of pairs) {
    const dt = document.createElement('dt'), dd = document.createElement('dd');
    dt.textContent = name;
    if (typeof value === 'object') dd.append(value); else dd.textContent = value;
    if (look) dd.className = look;
    list.append(dt, dd);
  }
  const parts = title === data.title ? [heading, list] : [link('‹ summary', summary), heading, list];
  for (const words of [text, chain]) {
    if (!words) continue;
    const pre = document.createElement('pre');
    pre.textContent = words;
    parts.push(pre);
  }
  $('record').replaceChildren(...parts);
}

const HINT = $('record').firstElementChild;

// What the recording is, until something is clicked: the slowest wake-ups are where one begins to look.
function summary() {
  const pairs = [['events', data.points.length], ['threads', byTime.length], ['wake-ups', wakes.length]];
  const late = data.points.filter(point => point[LATE] !== 0).length;
  pairs.push(['order', late ? `${late} late or not proven` : 'all proven', late ? 'late' : '']);
  data.losses.slice(0, 5).forEach((loss, at) => {
    pairs.push([at ? '' : 'losses', link(loss[3], () => selectLoss(loss)), 'lost']);
  });
  if (data.losses.length > 5) pairs.push(['', `and ${data.losses.length - 5} more`, 'lost']);
  slowest.slice(0, 10).forEach((wake, at) => {
    pairs.push([at ? '' : 'waited longest', link(`${span(wake.ran - wake.time)} ${nameOf(wake.woken)}`, () => selectWake(wake))]);
  });
  rows(data.title, pairs);
  $('record').append(HINT);
}

function link(words, action) {
  const anchor = document.createElement('a');
  anchor.href = '#';
  anchor.textContent = words;
  anchor.onclick = event => { event.preventDefault(); action(); };
  return anchor;
}

function clock(time) {
  const all = (BigInt(data.start) + BigInt(Math.round(time))).toString().padStart(10, '0');
  return `${all.slice(0, -9)}.${all.slice(-9)} s`;
}

// Date and time of day, where the recording says what the wall clock was.
function date(time) {
  const all = BigInt(data.wall) + BigInt(Math.round(time)), day = new Date(Number(all / 1000000000n) * 1000).toISOString();
  return `${day.slice(0, 10)} ${day.slice(11, 19)}.${(all % 1000000000n).toString().padStart(9, '0')} UTC`;
}

function when(name, time) {
  return data.wall ? [[name, clock(time)], ['', date(time)]] : [[name, clock(time)]];
}

function selectPoint(at) {
  const point = data.points[at];
  view.selected = { point: at, time: point[TIME] };
  const late = point[LATE], pairs = [...when('time', point[TIME]), ['since start', span(point[TIME])]];
  pairs.push(['CPU', point[CPU] ?? '?']);
  if (point[INTERRUPT]) pairs.push(['by', nameOf(point[INTERRUPT])]);
  pairs.push([point[INTERRUPT] ? 'interrupted' : 'thread', nameOf(point[TID])]);
  if (late > 0) pairs.push(['order', `late by ${span(late)}`, 'late']);
  if (late < 0) pairs.push(['order', 'not proven', 'late']);
  rows(data.events[point[EVENT]], pairs, data.texts[point[TEXT]], data.texts[point[CHAIN]]);
  redraw();
}

function selectRun(run) {
  const [from, to, cpu, tid] = run, wake = wakeOfRun.get(`${tid}:${from}`);
  view.selected = { time: from, wake };
  const pairs = [['CPU', cpu], ...when('from', from), ['for', span(to - from)]];
  if (wake) {
    const go = () => { reveal(place.get('cpu' + wake.cpu), wake.time); view.selected.time = wake.time; };
    pairs.push(['woken by', link(nameOf(wake.waker), go)], ['waited', span(wake.ran - wake.time)]);
  }
  pairs.push(['shown', link('this stretch', () => show(from - (to - from), to + (to - from)))]);
  rows(nameOf(tid), pairs);
  redraw();
}

function selectLoss(loss) {
  const room = Math.max(1000, 4 * (loss[1] - loss[0]));
  if (loss[0] < view.from || loss[1] > view.to || loss[1] - loss[0] < 4 * scale()) show(loss[0] - room, loss[1] + room);
  rows('Loss', [...when('from', loss[0]), ...when('to', loss[1]), ['CPU', loss[2] ?? 'all']], loss[3]);
  redraw();
}

// The thread's run that a wake-up led to, with the wake-up in sight.
function selectWake(wake) {
  const lane = lanes[place.get('thread' + wake.woken)], room = wake.ran - wake.time;
  show(wake.time - room, wake.ran + room);
  const run = lane.runs[after(lane.to, wake.ran)];
  if (run && run[0] === wake.ran) {
    selectRun(run);
  } else {
    view.selected = { time: wake.ran, wake };
    rows(nameOf(wake.woken), [['woken by', nameOf(wake.waker)], ...when('at', wake.time), ['waited', span(room)]]);
  }
  reveal(place.get('thread' + wake.woken), wake.ran);
}

function click(x, y) {
  const at = lanes.findIndex((_, at) => y >= Y(at) && y < Y(at) + LANE);
  if (at < 0 || x < LABEL) return;
  const lane = lanes[at], time = view.from + (x - LABEL) * scale(), near = 4 * scale();
  const loss = lane.losses.find(([from, to]) => time >= from - near && time <= to + near);
  const run = after(lane.to, time), isRun = lane.from[run] <= time, isAbove = y - Y(at) < LANE - MARK;
  let best = null;
  // Above the marks there are late events alone, wherever a stretch lies.
  for (const [times, points] of [[isAbove && (isRun || loss) ? [] : lane.times, lane.points], [lane.lateTimes, lane.late]]) {
    for (let i = Math.max(0, after(times, time) - 1); i < times.length && i <= after(times, time); i++) {
      const far = Math.abs(times[i] - time);
      if (far <= near && (best === null || far <= best[0])) best = [far, points[i]];
    }
  }
  if (best) return selectPoint(best[1]);
  if (loss) return selectLoss(loss);
  if (isRun) selectRun(lane.runs[run]);
}

// ---- search ----
function search(words) {
  const wanted = words.toLowerCase(), has = text => text.toLowerCase().includes(wanted);
  const texts = data.texts.map(has), events = data.events.map(has);
  const tids = new Set(data.threads.filter(([tid]) => has(nameOf(tid))).map(([tid]) => tid));
  view.hits = [];
  if (wanted) {
    data.points.forEach((point, at) => {
      if (texts[point[TEXT]] || texts[point[CHAIN]] || events[point[EVENT]] || !point[INTERRUPT] && tids.has(point[TID])) view.hits.push(at);
    });
  }
  const hits = new Set(view.hits);
  for (const lane of lanes) {
    lane.hitTimes = wanted ? Float64Array.from(lane.points.filter(at => hits.has(at)), at => data.points[at][TIME]) : null;
  }
  view.hit = -1;
  $('found').textContent = wanted ? `${view.hits.length} found` : '';
  redraw();
}

function jump(by) {
  if (!view.hits.length) return;
  view.hit = (view.hit + by + view.hits.length) % view.hits.length;
  $('found').textContent = `${view.hit + 1} of ${view.hits.length}`;
  const point = data.points[view.hits[view.hit]];
  selectPoint(view.hits[view.hit]);
  reveal(place.get('cpu' + point[CPU]) ?? 0, point[TIME]);
}

// ---- hands ----
let drag = null;
canvas.onpointerdown = event => {
  drag = { x: event.offsetX, y: event.offsetY, from: view.from, to: view.to, scroll: view.scroll, moved: false };
  canvas.setPointerCapture(event.pointerId);
};
canvas.onpointermove = event => {
  if (!drag) return;
  const [x, y] = [event.offsetX - drag.x, event.offsetY - drag.y];
  drag.moved ||= Math.abs(x) + Math.abs(y) > 3;
  if (!drag.moved) return;
  view.scroll = drag.scroll - y;
  show(drag.from - x * scale(), drag.to - x * scale());
};
canvas.onpointerup = event => {
  if (drag && !drag.moved) click(event.offsetX, event.offsetY);
  drag = null;
};
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  if (event.ctrlKey || event.metaKey) {
    zoom(1.002 ** event.deltaY, view.from + Math.max(0, event.offsetX - LABEL) * scale());
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const by = (event.deltaX || event.deltaY) * scale();
    show(view.from + by, view.to + by);
  } else {
    view.scroll += event.deltaY;
    redraw();
  }
}, { passive: false });
const pan = part => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
const KEYS = { w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), 0: () => show(0, END) };
Object.assign(KEYS, { ArrowLeft: KEYS.a, ArrowRight: KEYS.d, '+': KEYS.w, '-': KEYS.s });
document.onkeydown = event => {
  if (event.target === $('search') || event.ctrlKey || event.metaKey) return;
  KEYS[event.key]?.();
};
$('search').oninput = event => search(event.target.value);
$('search').onkeydown = event => { if (event.key === 'Enter') jump(event.shiftKey ? -1 : 1); };
$('before').onclick = () => jump(-1);
$('after').onclick = () => jump(1);
$('whole').onclick = KEYS[0];
$('in').onclick = KEYS.w;
$('out').onclick = KEYS.s;
addEventListener('resize', redraw);

// A link shows a part: page.html#from=1000&to=2000&search=ping&hit=3&event=17&wake=0&click=400,60
document.title = data.title + ' – perfweave';
$('title').textContent = data.title;
$('began').textContent = data.wall ? `0 is ${date(0)}` : 'date not known';
Object.assign(document.body.dataset, { events: data.points.length, wakes: wakes.length, runs: data.runs.length, losses: data.losses.length });
function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = name => Number(asked.get(name));
  if (asked.has('to')) show(number('from'), number('to'));
  draw();
  if (asked.has('search')) search($('search').value = asked.get('search'));
  for (let hit = 0; hit < number('hit'); hit++) jump(1);
  if (data.points[asked.get('event')]) selectPoint(number('event'));
  // The thread that waited longest is 0.
  if (slowest[asked.get('wake')]) selectWake(slowest[number('wake')]);
  if (asked.has('click')) click(...asked.get('click').split(',').map(Number));
  draw();
}
addEventListener('hashchange', follow);
summary();
follow();
