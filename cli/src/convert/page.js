'use strict';
// Times are nanoseconds since the recording's first event.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const canvas = $('lanes'), paint = canvas.getContext('2d', { alpha: false });
const LABEL = 180, RULER = 24, LANE = 20, HEAD = 22, MARK = 6, ARROW_ROOM = 16;
const TIME = 0, CPU = 1, TID = 2, EVENT = 3, TEXT = 4, LATE = 5, CHAIN = 6, INTERRUPT = 7;
const END = Math.max(data.end, 1000);
const threads = new Map(data.threads.map(([tid, pid, name]) => [tid, { pid, name }]));
// A thread by its number, or an interrupt by its name or kind.
const nameOf = tid => tid === 0 ? 'idle' : typeof tid === 'string' ? `[${tid}]` : tid === null ? '?' : `${threads.get(tid)?.name || '?'} ${tid}`;
// The colour of each state, by the words that the data have for it.
const STATES = { ran: 'ran', ready: 'ready', blocked: 'blocked', 'blocked, uninterruptible': 'disk', stopped: 'blocked' };

// The first index, of those from one on, of a sorted array whose value is larger. It is looked for near the first, and in ever larger steps.
let looked = 0;
function after(sorted, value, from = 0) {
  let to = from;
  for (let step = 1; to < sorted.length && sorted[to] <= value; step *= 2) { from = to + 1; to += step; looked += 1; }
  to = Math.min(to, sorted.length);
  while (from < to) {
    const middle = (from + to) >> 1;
    looked += 1;
    if (sorted[middle] > value) to = middle; else from = middle + 1;
  }
  return from;
}

// Wake-ups by their time, and the slowest first.
const wakes = data.wakes.map(([time, cpu, waker, woken, ran, on], at) => ({ at, time, cpu, waker, woken, ran, on }));
const wakeTimes = Float64Array.from(wakes, wake => wake.time);
const slowest = [...wakes].sort((a, b) => (b.ran - b.time) - (a.ran - a.time));
const slowFrom = Float64Array.from(slowest, wake => wake.time), slowTo = Float64Array.from(slowest, wake => wake.ran);

// ---- lanes ----
const column = (rows, value) => {
  const all = new Float64Array(rows.length);
  for (let at = 0; at < rows.length; at++) all[at] = value(rows[at], at);
  return all;
};
const inOrder = (rows, value) => {
  for (let at = 1; at < rows.length; at++) if (value(rows[at - 1]) > value(rows[at])) return rows.sort((a, b) => value(a) - value(b));
  return rows;
};
// The sums of all before each place.
const sums = (rows, value) => {
  const all = new Float64Array(rows.length + 1);
  for (let at = 0; at < rows.length; at++) all[at + 1] = all[at] + value(rows[at]);
  return all;
};
const lasted = row => row[1] - row[0];

class Lane {
  constructor(title, kind, id) {
    Object.assign(this, { title, kind, id, runs: [], waits: [], points: [], losses: [], wakes: [], unknown: [], row: null });
  }
  // Sorted columns, which are searched by halves.
  seal() {
    const first = row => row[0], time = at => data.points[at][TIME];
    inOrder(this.runs, first);
    inOrder(this.waits, first);
    inOrder(this.losses, first);
    inOrder(this.points, time);
    [this.from, this.to, this.busy] = [column(this.runs, first), column(this.runs, run => run[1]), sums(this.runs, lasted)];
    [this.waitFrom, this.waitTo, this.waited] = [column(this.waits, first), column(this.waits, wait => wait[1]), sums(this.waits, lasted)];
    this.ready = sums(this.waits, wait => wait[3] === 'ready' ? lasted(wait) : 0);
    this.times = column(this.points, time);
    this.late = this.points.filter(at => data.points[at][LATE] !== 0);
    this.lateTimes = column(this.late, time);
    inOrder(this.wakes, wake => wake.ran);
    this.ran = column(this.wakes, wake => wake.ran);
  }
  // The wake-up that a run began with.
  wakeOf(run) {
    const wake = this.wakes[after(this.ran, run[0]) - 1];
    return wake?.ran === run[0] ? wake : undefined;
  }
}

const cpuLanes = new Map(data.cpus.map(cpu => [cpu, new Lane(`CPU ${cpu}`, 'cpu', cpu)]));
const threadLanes = new Map();
function threadLane(tid, title) {
  if (!threadLanes.has(tid)) threadLanes.set(tid, new Lane(title ?? nameOf(tid), 'thread', tid));
  return threadLanes.get(tid);
}
for (const run of data.runs) {
  cpuLanes.get(run[2])?.runs.push(run);
  threadLane(run[3]).runs.push(run);
}
for (const wait of data.waits) threadLane(wait[2]).waits.push(wait);
for (const one of data.unknown) cpuLanes.get(one[2])?.unknown.push(one);
const nowhere = new Lane('no CPU', 'other', null);
for (let at = 0; at < data.points.length; at++) {
  const point = data.points[at];
  (cpuLanes.get(point[CPU]) || nowhere).points.push(at);
  // A thread has no part in what an interrupt does.
  if (point[TID] > 0 && !point[INTERRUPT]) threadLane(point[TID]).points.push(at);
}
for (const wake of wakes) if (wake.woken > 0) threadLane(wake.woken).wakes.push(wake);
for (const loss of data.losses) {
  if (loss[2] === null) cpuLanes.forEach(lane => lane.losses.push(loss)); else cpuLanes.get(loss[2])?.losses.push(loss);
}

// ---- ways: the paths of `why` ----
// A thread from outside of the PID namespace has no number.
const keyOf = step => step.tid ?? `${step.thread}/-`;
function reasonOf({ what, by }) {
  if (what !== 'blocked') return what;
  if (by?.interrupt && !['timer', 'unnamed'].includes(by.interrupt)) return 'device';
  return what;
}
// What is for nobody else, in its order and without a hole: a wait for a thread is what that thread did.
function leavesOf(path, leaves = []) {
  for (const step of path) {
    if (step.path?.length) leavesOf(step.path, leaves);
    else leaves.push({ from: step.from, to: step.to, reason: reasonOf(step), lane: threadLane(keyOf(step), step.tid === null ? keyOf(step) : undefined), step });
  }
  return leaves;
}
const ways = data.ways.map(way => {
  const did = { command: 'took', wait: 'waited', request: 'had a request that took' }[way.why], leaves = leavesOf(way.path);
  const first = threadLane(keyOf(way), way.tid === null ? keyOf(way) : undefined);
  return {
    ...way, leaves, title: `${first.title} ${did} ${span(way.ns)}`, ends: column(leaves, leaf => leaf.to),
    lanes: [...new Set([first, ...leaves.map(leaf => leaf.lane)])],
  };
});

const byTime = [...threadLanes.values()], topLanes = [...cpuLanes.values()];
if (nowhere.points.length) topLanes.push(nowhere);
[...topLanes, ...byTime].forEach(lane => lane.seal());
// The busiest threads come first.
byTime.sort((a, b) => b.busy.at(-1) - a.busy.at(-1) || b.points.length - a.points.length || a.id - b.id);
const lanes = [...topLanes, ...byTime];

// Who had a CPU meanwhile, the longest first: a thread's number, 0 for nobody, null where it is not known.
function insteadOn(cpu, from, to) {
  const lane = cpuLanes.get(cpu), shares = new Map();
  if (!lane) return [];
  const add = (who, start, end) => {
    const time = Math.min(end, to) - Math.max(start, from);
    if (time > 0) shares.set(who, (shares.get(who) || 0) + time);
    return Math.max(0, time);
  };
  let left = to - from;
  for (let at = after(lane.to, from); at < lane.runs.length && lane.from[at] < to; at++) left -= add(lane.runs[at][3], lane.from[at], lane.to[at]);
  for (const [start, end] of lane.unknown) left -= add(null, start, end);
  if (left > 0) shares.set(0, left);
  return [...shares].sort((a, b) => b[1] - a[1]);
}

// ---- what is shown ----
const view = { from: 0, to: END, scroll: 0, topScroll: 0, selected: null, hits: [], hit: -1, way: ways[0] || null, filter: '', open: !ways.length, pinned: new Set() };
let shapes = 0, colours = {}, width = 0, height = 0, queued = false;
const scale = () => (view.to - view.from) / Math.max(1, width - LABEL);
const X = time => LABEL + (time - view.from) / scale();

// CPUs and pinned lanes stay; the others scroll below them. The threads of the path come first.
const parts = { top: { rows: [], height: 0 }, rest: { rows: [], height: 0 } };
function layOut() {
  lanes.forEach(lane => { lane.row = null; });
  const start = name => Object.assign(parts[name], { rows: [], height: 0 });
  const add = (name, row, room) => {
    Object.assign(row, { y: parts[name].height, part: parts[name] });
    parts[name].rows.push(row);
    parts[name].height += room;
    if (row.lane) row.lane.row = row;
  };
  const group = (name, title, all, fold) => {
    if (!all.length) return;
    add(name, { title, fold }, HEAD);
    if (!fold || view.open) all.forEach(lane => add(name, { lane }, LANE));
  };
  start('top');
  group('top', `${cpuLanes.size} CPUs`, topLanes);
  group('top', 'pinned', [...view.pinned]);
  start('rest');
  const ofWay = view.way ? view.way.lanes.filter(lane => !view.pinned.has(lane)) : [];
  const words = view.filter.toLowerCase().split(/[ ,]+/).filter(Boolean);
  const passes = lane => !words.length || words.some(word => lane.title.toLowerCase().includes(word) || String(threads.get(lane.id)?.pid) === word);
  const others = byTime.filter(lane => !view.pinned.has(lane) && !ofWay.includes(lane) && passes(lane));
  group('rest', `${ofWay.length} threads of the path`, ofWay);
  const rest = words.length ? `${others.length} threads found` : `${others.length} ${view.way ? 'other ' : ''}threads, the busiest first`;
  const isFolder = view.way && !words.length;
  group('rest', isFolder ? `${view.open ? '▾' : '▸'} ${rest}` : rest, others, isFolder);
  document.body.dataset.shown = lanes.filter(lane => lane.row).length;
}
// How much of the screen the lanes at the top have: at most half.
const topRoom = () => Math.min(parts.top.height, Math.max(LANE, Math.floor((height - RULER) / 2)));
const mostTop = () => Math.max(0, parts.top.height - topRoom());
const most = () => Math.max(0, parts.rest.height + LANE - (height - RULER - topRoom()));
// Where a row is, if it is shown at all.
const Y = ({ row }) => row ? rowY(row) : undefined;
const rowY = row => RULER + row.y + Math.round(row.part === parts.top ? -view.topScroll : topRoom() - view.scroll);
function isSeen(lane) {
  if (!lane?.row) return false;
  const y = rowY(lane.row) + LANE / 2, edge = RULER + topRoom();
  return lane.row.part === parts.top ? y > RULER && y < edge : y > edge && y < height;
}

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

// A thread has a colour of its own, as a text for the canvas and as an ink: the number that a pixel has.
const hues = new Map(), hueInks = new Map();
function colour(tid) {
  if (!hues.has(tid)) hues.set(tid, `hsl(${(tid * 137.508) % 360} 55% ${colours.dark ? 45 : 68}%)`);
  return hues.get(tid);
}
function inkOf(tid) {
  if (!hueInks.has(tid)) hueInks.set(tid, ink(colour(tid)));
  return hueInks.get(tid);
}

// ---- pixels ----
// What lanes have is written into the numbers of one picture, which the canvas gets at once: it would take its time for each rectangle.
// Places are the page's, and a pixel of the page has `ratio` pixels of the screen a side.
let picture = null, dots = null, across = 0, ratio = 1, highest = 0, lowest = 0, inks = {};

// The number that a pixel of a colour has.
const probe = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
function ink(fill) {
  probe.fillStyle = fill;
  probe.fillRect(0, 0, 1, 1);
  return new Int32Array(probe.getImageData(0, 0, 1, 1).data.buffer)[0];
}

// Begins a picture of the canvas's rows from one to another. Nothing is written outside of them.
function begin(from, to) {
  if (picture?.width !== canvas.width || picture.height !== canvas.height) {
    picture = paint.createImageData(canvas.width, canvas.height);
    dots = new Int32Array(picture.data.buffer);
    across = picture.width;
  }
  [highest, lowest] = [Math.round(from * ratio), Math.min(picture.height, Math.round(to * ratio))];
  dots.fill(inks.back, highest * across, lowest * across);
}

// A pixel of which some parts of 256 are of another colour: for each of its red, green and blue.
function mix(under, over, part) {
  const rest = 256 - part, high = ((under >> 8 & 0xff00) * rest + (over >> 8 & 0xff00) * part) & 0xff0000;
  const middle = ((under >> 8 & 0xff) * rest + (over >> 8 & 0xff) * part) & 0xff00, low = ((under & 0xff) * rest + (over & 0xff) * part) >> 8;
  return 0xff000000 | high | middle | low;
}

// Writes a rectangle. A weak one is mixed with what is below it.
function fill(x, y, w, h, ink, strength = 1) {
  const part = Math.ceil(Math.min(1, strength) * 8) * 32, left = Math.round(x * ratio), right = Math.min(across, Math.round((x + w) * ratio));
  const end = Math.min(lowest, Math.round((y + h) * ratio)) * across;
  let under = 0, mixed = ink;
  shapes += 1;
  for (let row = Math.max(highest, Math.round(y * ratio)) * across; row < end; row += across) {
    if (part === 256 && right - left > 8) {
      dots.fill(ink, row + left, row + right);
      continue;
    }
    for (let at = row + left; at < row + right; at++) {
      if (part < 256 && dots[at] !== under) {
        under = dots[at];
        mixed = mix(under, ink, part);
      }
      dots[at] = mixed;
    }
  }
}

// Writes lines aslant through a rectangle.
function hatch(x, y, w, h, ink) {
  for (let row = y; row < y + h; row++) {
    for (let column = x - (x + row & 7); column < x + w; column += 8) {
      const left = Math.max(x, column), right = Math.min(x + w, column + 2);
      if (right > left) fill(left, row, right - left, 1, ink);
    }
  }
}

// The canvas reads a colour from its text each time: it is told only of another.
let brush = null;
function box(x, y, w, h, fill) {
  if (fill !== brush) paint.fillStyle = brush = fill;
  paint.fillRect(x, y, w, h);
  shapes += 1;
}

// Draws within a part of the canvas.
function within(x, y, w, h, inside) {
  paint.save();
  paint.beginPath();
  paint.rect(x, y, w, h);
  paint.clip();
  inside();
  paint.restore();
  brush = null;
}

// What ran, between two columns. Names of long runs are written later: above the pixels.
function drawRuns(lane, y, first, last, isWeak) {
  const { from, to, busy, runs } = lane, wide = scale(), isCpu = lane.kind === 'cpu', end = view.from + (last - LABEL) * wide;
  let at = after(to, view.from + (first - LABEL) * wide);
  while (at < runs.length && from[at] < end) {
    const left = Math.max(first, X(from[at])), right = Math.min(last, X(to[at]));
    if (right - left >= 1.5) {
      fill(left, y + 3, right - left, LANE - 6, isCpu ? inkOf(runs[at][3]) : inks.ran);
      if (right - left > 34) labels.push([isCpu ? nameOf(runs[at][3]) : `CPU ${runs[at][2]}`, Math.max(LABEL, X(from[at])) + 3, y, left + 3, right - 3, isWeak]);
      at += 1;
      continue;
    }
    // One column for all that end in this pixel, as strong as they are busy.
    const edge = view.from + (Math.floor(left - LABEL) + 1) * wide;
    const next = Math.max(at + 1, after(to, edge, at));
    // In a CPU's lane it has the colour of whoever runs in the middle of the pixel.
    const middle = runs[Math.min(next - 1, after(to, edge - wide / 2, at))];
    fill(Math.floor(left), y + 3, 1, LANE - 6, isCpu ? inkOf(middle[3]) : inks.ran, 0.3 + (busy[next] - busy[at]) / wide);
    at = next;
  }
}

function label(text, x, y, room) {
  within(x, y, room, LANE, () => write(text, x, y));
}

function write(text, x, y) {
  paint.fillStyle = colours.text;
  paint.fillText(text, x, y + LANE / 2);
}

// A mark for each pixel that has events.
function drawMarks(times, y, h, ink) {
  const wide = scale();
  let at = after(times, view.from - wide);
  while (at < times.length && times[at] <= view.to) {
    const x = Math.floor(X(times[at]));
    if (x >= LABEL) fill(x, y, 1, h, ink);
    at = Math.max(at + 1, after(times, view.from + (x - LABEL + 1) * wide, at));
  }
}

// What a thread waits for: a thin line, and a thick one where it could run.
function drawWaits({ waits, waitFrom, waitTo, waited, ready }, y) {
  const wide = scale(), middle = y + LANE / 2;
  let at = after(waitTo, view.from);
  while (at < waits.length && waitFrom[at] < view.to) {
    const left = Math.max(LABEL, X(waitFrom[at])), right = Math.min(width, X(waitTo[at]));
    const thick = waits[at][3] === 'ready' ? 6 : 2;
    if (right - left >= 1) {
      fill(left, middle - thick / 2, right - left, thick, inks[STATES[waits[at][3]]]);
      at += 1;
      continue;
    }
    // All that end in this pixel: what most of it is.
    const next = Math.max(at + 1, after(waitTo, view.from + (Math.floor(left - LABEL) + 1) * wide, at));
    const could = ready[next] - ready[at], all = waited[next] - waited[at], isReady = could * 2 > all;
    fill(Math.floor(left), middle - (isReady ? 3 : 1), 1, isReady ? 6 : 2, isReady ? inks.ready : inks[STATES[waits[at][3]]], 0.3 + all / wide);
    at = next;
  }
}

function drawLane(lane, index) {
  const y = rowY(lane.row);
  if (index % 2) fill(LABEL, y, width - LABEL, LANE, inks.stripe);
  drawWaits(lane, y);
  drawRuns(lane, y, LABEL, width, view.way);
  drawMarks(lane.times, y + LANE - MARK, 4, inks.weak);
  if (lane.hitTimes) drawMarks(lane.hitTimes, y + 1, LANE - 2, inks.hit);
  drawMarks(lane.lateTimes, y + 1, LANE - 2, inks.late);
  let hatched = 0;
  for (const [from, to] of lane.losses) {
    if (to < view.from || from > view.to) continue;
    const left = Math.floor(Math.max(LABEL, hatched, X(from))), right = Math.max(left + 2, Math.floor(Math.min(width, X(to))));
    if (X(to) < hatched) continue;
    hatch(left, y + 1, right - left, LANE - 2, inks.loss);
    hatched = right;
  }
}

function drawTitle(lane) {
  const y = rowY(lane.row);
  box(0, y, LABEL, LANE, colours.back);
  if (lane.kind === 'thread' && typeof lane.id === 'number') box(2, y + 5, 4, LANE - 10, colour(lane.id));
  label(view.pinned.has(lane) ? `📌 ${lane.title}` : lane.title, 10, y, LABEL - 16);
}

// ---- the ribbon ----
// One band through the lanes of those on whom it depended, and in the CPUs' lanes who had the CPU.
let banded = 0;
function drawRibbon(part) {
  const { leaves, ends } = view.way;
  let last = null, drawn = -1, joined = -1;
  for (let at = after(ends, view.from); at < leaves.length && leaves[at].from < view.to; at++) {
    const leaf = leaves[at], left = Math.max(LABEL, X(leaf.from)), right = Math.min(width, X(leaf.to)), fill = colours[leaf.reason];
    if (!leaf.lane.row) continue;
    const y = rowY(leaf.lane.row), before = last;
    last = leaf.lane;
    if (before && before !== leaf.lane && part === parts.rest && Math.floor(left) > joined) {
      const from = rowY(before.row) + LANE / 2;
      box(left - 1, Math.min(from, y + LANE / 2), 2, Math.abs(y + LANE / 2 - from), fill);
      joined = Math.floor(left);
    }
    if (leaf.lane.row.part !== part || y > height || y < RULER - LANE || Math.floor(right) === drawn && right - left < 1) continue;
    drawn = Math.floor(right);
    box(left, y + 1, Math.max(1, right - left), LANE - 2, fill);
    banded += 1;
    if (right - left > 60) label(wordsOf(leaf.step), left + 4, y, right - left - 8);
  }
}

// What is not on the path stands back, but for who had the CPU on which it ran or could have run.
function standBack(part, from, to) {
  const { leaves, ends } = view.way;
  fill(LABEL, from, width - LABEL, to - from, inks.back, 0.6);
  for (let at = after(ends, view.from); at < leaves.length && leaves[at].from < view.to; at++) {
    const leaf = leaves[at], lane = cpuLanes.get(leaf.step.cpu), left = Math.max(LABEL, X(leaf.from)), right = Math.min(width, X(leaf.to));
    if (right - left < 2 || lane?.row?.part !== part) continue;
    const y = rowY(lane.row);
    fill(left, y, right - left, LANE, inks.back);
    drawRuns(lane, y, left, right);
    fill(left, y + LANE - 3, right - left, 3, inks[leaf.reason]);
  }
}

// ---- arrows ----
function shownWakes() {
  const first = after(wakeTimes, view.from - 1), last = after(wakeTimes, view.to);
  const shown = [];
  // Of many, the slowest: they are what one looks for.
  const limit = Math.floor((width - LABEL) / ARROW_ROOM);
  for (let at = 0; at < slowest.length && shown.length < limit; at++) {
    if (slowFrom[at] <= view.to && slowTo[at] >= view.from) shown.push(slowest[at]);
  }
  const note = shown.length === limit && last - first > limit ? `${last - first} wake-ups here: the ${shown.length} slowest have arrows` : '';
  // The same words again would lay the whole page out again.
  if ($('note').textContent !== note) $('note').textContent = note;
  return shown;
}

// Both ends are in sight, or the wake-up is the chosen one: of others one would see lines without ends.
function arrow(wake, from, to, chosen) {
  if (!from?.row || !to?.row || !chosen && !(isSeen(from) && isSeen(to))) return;
  const [x0, y0, x1, y1] = [X(wake.time), Y(from) + LANE / 2, X(wake.ran), Y(to) + LANE / 2];
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
  // The way is enough to see, beside the wake-up that is chosen.
  const shown = view.way ? [view.selected?.wake].filter(Boolean) : shownWakes();
  within(LABEL, RULER, width - LABEL, height, () => shown.forEach(wake => {
    const chosen = view.selected?.wake === wake;
    paint.strokeStyle = chosen ? colours.hit : colours.arrow;
    paint.lineWidth = chosen ? 2 : 1;
    paint.globalAlpha = chosen ? 1 : 0.6;
    if (wake.cpu !== wake.on) arrow(wake, cpuLanes.get(wake.cpu), cpuLanes.get(wake.on), chosen);
    arrow(wake, threadLanes.get(wake.waker), threadLanes.get(wake.woken), chosen);
  }));
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
  // Counted: beyond 2^53 ns a step may add nothing to a time.
  const first = Math.ceil(view.from / step), ticks = Math.floor((view.to - view.from) / step);
  for (let tick = 0; tick <= ticks; tick++) {
    const time = (first + tick) * step;
    if (time > view.to) break;
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
  const room = canvas.getBoundingClientRect();
  ratio = devicePixelRatio || 1;
  [width, height] = [room.width, room.height];
  // A picture without a pixel is an error.
  const [wide, high] = [width, height].map(side => Math.max(1, Math.round(side * ratio)));
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  if (!colours.back) readColours();
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.font = '12px system-ui, sans-serif';
  paint.textBaseline = 'middle';
  shapes = banded = looked = 0;
  brush = null;
  view.topScroll = Math.min(Math.max(0, view.topScroll), mostTop());
  view.scroll = Math.min(Math.max(0, view.scroll), most());
  box(0, 0, width, height, colours.back);
  const edge = RULER + topRoom();
  drawPart(parts.rest, edge, height);
  drawPart(parts.top, RULER, edge);
  drawArrows();
  if (view.selected) box(X(view.selected.time), RULER, 1, height, colours.hit);
  box(0, edge - 1, width, 1, colours.line);
  drawRuler();
  Object.assign(document.body.dataset, { drawn: shapes, looked, ribbon: banded, lanes: lanes.length, from: Math.round(view.from), to: Math.round(view.to) });
}

const COLOURS = ['back', 'text', 'weak', 'line', 'stripe', 'late', 'loss', 'arrow', 'hit', 'ran', 'ready', 'blocked', 'disk', 'device', 'unknown'];
function readColours() {
  const probe = document.createElement('i');
  document.body.append(probe);
  for (const name of COLOURS) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  for (const name of COLOURS) inks[name] = ink(colours[name]);
  hues.clear();
  hueInks.clear();
}

let labels = [];
function drawPart(part, from, to) {
  const inSight = part.rows.filter(row => rowY(row) < to && rowY(row) + HEAD > from);
  begin(from, to);
  labels = [];
  inSight.forEach((row, at) => row.lane && drawLane(row.lane, at + part.rows.indexOf(inSight[0])));
  if (view.way) standBack(part, from, to);
  paint.putImageData(picture, 0, 0, 0, highest, across, lowest - highest);
  within(0, from, width, to - from, () => {
    for (const [text, x, y, left, right, isWeak] of labels) {
      paint.globalAlpha = isWeak ? 0.4 : 1;
      within(left, y, right - left, LANE, () => write(text, x, y));
    }
    paint.globalAlpha = 1;
    if (view.way) drawRibbon(part);
    for (const row of inSight) {
      if (row.lane) drawTitle(row.lane); else label(row.title, 8, rowY(row) + 2, 400);
    }
  });
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

function reveal(lane, time) {
  if (lane && !lane.row) {
    // It is folded away or filtered out.
    Object.assign(view, { open: true, filter: '' });
    $('filter').value = '';
    layOut();
  }
  if (lane && !isSeen(lane)) {
    if (lane.row.part === parts.top) view.topScroll = lane.row.y - topRoom() / 2;
    else view.scroll = lane.row.y - (height - RULER - topRoom()) / 2;
  }
  if (time < view.from || time > view.to) {
    const half = (view.to - view.from) / 2;
    show(time - half, time + half);
  }
  redraw();
}

// ---- what hangs: who waits for whom ----
const HANG_ROW = 20, GUTTER = 56, MOST_HANGING = 40;

// A row for each thread, and an arc from each to who would have to end its wait.
function hanging() {
  const waits = new Map(data.hangs.map(hang => [hang.tid, hang])), nodes = new Map();
  const place = (tid, name) => { if (!nodes.has(tid)) nodes.set(tid, { tid, name, row: nodes.size, hang: waits.get(tid) }); };
  // Whom a thread waits for is below it, so that arcs are short. The first are those of deadlocks.
  const next = data.hangs.slice(0, MOST_HANGING).reverse().map(hang => [hang.tid, hang.hangs]);
  while (next.length && nodes.size < 2 * MOST_HANGING) {
    const [tid, name] = next.pop();
    if (nodes.has(tid)) continue;
    place(tid, name);
    for (const whom of waits.get(tid)?.for ?? []) next.push([whom.tid, whom.thread]);
  }
  const shown = [...nodes.values()].filter(node => node.hang).length;
  const svg = shape('svg', { width: '100%', height: HANG_ROW * nodes.size + 4, class: 'hanging', role: 'img', 'aria-label': 'who waits for whom' });
  for (const node of nodes.values()) {
    const y = HANG_ROW * (node.row + 0.5);
    for (const whom of node.hang?.for ?? []) {
      const other = nodes.get(whom.tid);
      if (!other || other === node) continue;
      const to = HANG_ROW * (other.row + 0.5), edge = GUTTER - 6, out = edge - Math.min(edge - 4, 8 + 8 * Math.abs(other.row - node.row));
      const look = node.hang.deadlock && other.hang?.deadlock ? 'deadlock' : 'waits';
      svg.append(shape('path', { d: `M${edge} ${y}C${out} ${y} ${out} ${to} ${edge} ${to}m-6 -4l6 4l-6 4`, class: look }));
    }
    const words = shape('text', { x: GUTTER, y: y + 4, class: node.hang?.deadlock ? 'late' : '' });
    words.textContent = `${node.name} ${node.tid}` + (node.hang ? `: ${node.hang.on}` : '');
    words.onclick = () => selectHang(node);
    svg.append(words);
  }
  return data.hangs.length > shown ? [svg, `${data.hangs.length - shown} more threads wait`] : [svg];
}

function shape(name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// A thread that waits, or one that others wait for.
function selectHang({ tid, name, hang }) {
  const lane = threadLanes.get(tid), pairs = [];
  if (lane && !view.pinned.has(lane)) pin(lane);
  if (hang) {
    pairs.push(['waits', hang.text]);
    if (hang.ns !== undefined) pairs.push([hang.at_least ? 'at least' : 'for', span(hang.ns)]);
    if (hang.call) pairs.push(['call', hang.call]);
    if (hang.deadlock) pairs.push(['', 'deadlock', 'late']);
  } else {
    pairs.push(['waits', 'nothing says that it does']);
  }
  rows(`${name} ${tid}`, pairs);
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

// What the recording is, until something is clicked: the path, or the slowest wake-ups, are where one begins to look.
function summary() {
  const pairs = [];
  ways.forEach((way, at) => pairs.push([at ? '' : 'why', link(way.title, () => choose(way)), way === view.way ? 'chosen' : '']));
  if (view.way) {
    pairs.push(['', link('everything, no path', () => choose(null))]);
    for (const { ns, text, what } of view.way.culprits.slice(0, 12)) {
      pairs.push([`${(100 * ns / Math.max(1, view.way.ns)).toFixed(0)} %`, `${span(ns)}  ${text}`, /: interrupt /.test(text) ? 'device' : CULPRITS[what]]);
    }
  }
  pairs.push(['threads', byTime.length], ['wake-ups', wakes.length]);
  if (data.points.length) {
    const late = data.points.filter(point => point[LATE] !== 0).length;
    pairs.push(['events', data.points.length], ['order', late ? `${late} late or not proven` : 'all proven', late ? 'late' : '']);
  }
  data.losses.slice(0, 5).forEach((loss, at) => {
    pairs.push([at ? '' : 'losses', link(loss[3], () => selectLoss(loss)), 'lost']);
  });
  if (data.losses.length > 5) pairs.push(['', `and ${data.losses.length - 5} more`, 'lost']);
  if (!view.way) {
    slowest.slice(0, 10).forEach((wake, at) => {
      pairs.push([at ? '' : 'waited longest', link(`${span(wake.ran - wake.time)} ${nameOf(wake.woken)}`, () => selectWake(wake))]);
    });
  }
  for (const [at, [name, words]] of LEGEND.entries()) pairs.push([at ? '' : 'colours', words, name]);
  rows(data.title, pairs);
  if (data.hangs.length) $('record').querySelector('h2').after(...hanging());
  $('record').append(HINT);
}

const CULPRITS = { ran: 'ran', interrupted: 'device', 'had the CPU': 'ready', idle: 'ready', 'held back': 'ready', interrupt: 'blocked', waited: 'blocked', 'not followed': 'blocked', unknown: 'unknown' };
const LEGEND = [['ran', 'runs'], ['ready', 'ready: it could run'], ['blocked', 'blocked'], ['disk', 'blocked, uninterruptible'], ['device', 'a device ended it'], ['unknown', 'not known']];

// Shows a way, from its beginning to its end, or none.
function choose(way) {
  Object.assign(view, { way, open: !way, scroll: 0, selected: null });
  layOut();
  if (way) show(way.from - way.ns / 20, way.to + way.ns / 20);
  summary();
  redraw();
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
  const [from, to, cpu, tid] = run, wake = threadLanes.get(tid)?.wakeOf(run);
  view.selected = { time: from, wake };
  const pairs = [['CPU', cpu], ...when('from', from), ['for', span(to - from)]];
  if (wake) pairs.push(['woken by', goTo(wake)], ['waited', span(wake.ran - wake.time)]);
  pairs.push(['shown', link('this stretch', () => show(from - (to - from), to + (to - from)))]);
  rows(nameOf(tid), pairs);
  redraw();
}

// Leads to where a wake-up came from.
function goTo(wake) {
  return link(nameOf(wake.waker), () => {
    reveal(threadLanes.get(wake.waker) ?? cpuLanes.get(wake.cpu), wake.time);
    view.selected.time = wake.time;
  });
}

// Who had the CPU meanwhile, each with its share.
function shares(instead, from, to) {
  return instead.slice(0, 12).map(([who, time], at) => {
    const words = `${span(time)} (${(100 * time / Math.max(1, to - from)).toFixed(0)} %)`;
    const name = who === 0 ? 'nobody: the CPU was idle' : who === null ? 'nobody knows who' : nameOf(who);
    const lane = threadLanes.get(who);
    return [at ? '' : 'ran instead', lane ? link(`${name}  ${words}`, () => reveal(lane, from)) : `${name}  ${words}`, 'instead'];
  });
}

// What a thread waited for.
function selectWait(wait) {
  const [from, to, tid, state, cpu, call, by] = wait, lane = threadLanes.get(tid), isReady = state === 'ready';
  const run = lane.runs[after(lane.to, to)], wake = isReady && run?.[0] === to ? lane.wakeOf(run) : undefined;
  view.selected = { time: from, wake };
  const pairs = [['state', state, STATES[state]], ...when('from', from), ['for', span(to - from)]];
  if (isReady) {
    pairs.push(['CPU', cpu ?? 'it has not run yet'], ['woken by', wake ? goTo(wake) : 'nobody: it was taken off its CPU']);
    if (cpu !== null) pairs.push(...shares(insteadOn(cpu, from, to), from, to));
  } else {
    const waker = threadLanes.get(by);
    pairs.push([to === data.end ? 'until the end' : 'ended by', waker ? link(nameOf(by), () => reveal(waker, to)) : by === null ? 'nothing says who' : nameOf(by)]);
  }
  pairs.push(['shown', link('this stretch', () => show(from - (to - from), to + (to - from)))]);
  rows(nameOf(tid), pairs, call === null ? '' : data.texts[call]);
  redraw();
}

// A stretch of the path.
function wordsOf({ what, cpu, taken_off, held_back, call, file, by, signal, cause }) {
  if (what === 'ran') return `ran on CPU ${cpu}`;
  if (what === 'unknown') return `unknown: ${cause}`;
  if (what === 'ready') return `ready${held_back ? ', held back by a quota' : taken_off ? ', taken off its CPU' : ''}${cpu === null ? ', and has not run yet' : ` for CPU ${cpu}`}`;
  const end = !by ? 'nothing says who ended it' : by.interrupt === 'timer' ? 'a timer ended it' : by.interrupt === 'unnamed' ? 'an interrupt' : by.interrupt ? `interrupt ${by.interrupt}` : `woken by ${by.thread} ${by.tid ?? ''}`;
  return `blocked${call ? ` in ${call}` : ''}${file ? ` of ${file}` : ''}: ${end}${signal ? `, with ${signal}` : ''}`;
}

function selectLeaf(leaf) {
  const { from, to, step, reason, lane } = leaf;
  view.selected = { time: from };
  const pairs = [['on the path', wordsOf(step), reason], ...when('from', from), ['for', span(to - from)]];
  pairs.push(['of the path', `${(100 * (to - from) / Math.max(1, view.way.ns)).toFixed(1)} %`]);
  const instead = (step.instead || []).map(share => [share.idle ? 0 : share.unknown ? null : keyOf(share), share.ns]);
  if (instead.length) pairs.push(...shares(instead, from, to));
  const args = step.args && Object.entries(step.args).map(([name, value]) => `${name}: ${value}`).join('\n');
  pairs.push(['shown', link('this stretch', () => show(from - (to - from), to + (to - from)))]);
  const stood = [['fell asleep in', step.asleep_at], ['was woken in', step.woken_at]].filter(([, functions]) => functions);
  rows(lane.title, pairs, args, stood.map(([did, functions]) => [did, ...functions].join('\n')).join('\n\n'));
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
  const lane = threadLanes.get(wake.woken), room = wake.ran - wake.time;
  show(wake.time - room, wake.ran + room);
  reveal(lane, wake.ran);
  const run = lane.runs[after(lane.to, wake.ran)];
  if (run && run[0] === wake.ran) return selectRun(run);
  view.selected = { time: wake.ran, wake };
  rows(nameOf(wake.woken), [['woken by', nameOf(wake.waker)], ...when('at', wake.time), ['waited', span(room)]]);
}

function pin(lane) {
  if (!view.pinned.delete(lane)) view.pinned.add(lane);
  layOut();
  redraw();
}

function click(x, y) {
  const edge = RULER + topRoom(), part = y < edge ? parts.top : parts.rest;
  const row = part.rows.find(row => y >= rowY(row) && y < rowY(row) + (row.lane ? LANE : HEAD));
  if (!row || y < RULER) return;
  if (!row.lane) {
    if (row.fold) { view.open = !view.open; layOut(); redraw(); }
    return;
  }
  const { lane } = row, time = view.from + (x - LABEL) * scale(), near = 4 * scale();
  if (x < LABEL) {
    if (lane.kind === 'thread') pin(lane);
    return;
  }
  const leaf = view.way?.leaves[after(view.way.ends, time)];
  if (leaf?.lane === lane && leaf.from <= time) return selectLeaf(leaf);
  const loss = lane.losses.find(([from, to]) => time >= from - near && time <= to + near);
  const run = after(lane.to, time), isRun = lane.from[run] <= time, isAbove = y - rowY(row) < LANE - MARK;
  const wait = after(lane.waitTo, time), isWait = lane.waitFrom[wait] <= time;
  let best = null;
  // Above the marks there are late events alone, wherever a stretch lies.
  for (const [times, points] of [[isAbove && (isRun || isWait || loss) ? [] : lane.times, lane.points], [lane.lateTimes, lane.late]]) {
    for (let i = Math.max(0, after(times, time) - 1); i < times.length && i <= after(times, time); i++) {
      const far = Math.abs(times[i] - time);
      if (far <= near && (best === null || far <= best[0])) best = [far, points[i]];
    }
  }
  if (best) return selectPoint(best[1]);
  if (loss) return selectLoss(loss);
  if (isRun) return selectRun(lane.runs[run]);
  if (isWait) selectWait(lane.waits[wait]);
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
  reveal(cpuLanes.get(point[CPU]), point[TIME]);
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
    if (event.offsetY < RULER + topRoom() && mostTop()) view.topScroll += event.deltaY; else view.scroll += event.deltaY;
    redraw();
  }
}, { passive: false });
const pan = part => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
const KEYS = { w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => pan(-0.2), d: () => pan(0.2), 0: () => show(0, END) };
Object.assign(KEYS, { ArrowLeft: KEYS.a, ArrowRight: KEYS.d, '+': KEYS.w, '-': KEYS.s });
document.onkeydown = event => {
  if (event.target.tagName === 'INPUT' || event.ctrlKey || event.metaKey) return;
  KEYS[event.key]?.();
};
$('search').oninput = event => search(event.target.value);
$('search').onkeydown = event => { if (event.key === 'Enter') jump(event.shiftKey ? -1 : 1); };
function filter(words) {
  Object.assign(view, { filter: words, scroll: 0 });
  layOut();
  redraw();
}
$('filter').oninput = event => filter(event.target.value);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { colours = {}; redraw(); });
$('before').onclick = () => jump(-1);
$('after').onclick = () => jump(1);
$('whole').onclick = KEYS[0];
$('in').onclick = KEYS.w;
$('out').onclick = KEYS.s;
addEventListener('resize', redraw);

// A link shows a part: page.html#from=1000&to=2000&search=ping&hit=3&event=17&wake=0&click=400,60&way=1&filter=sh&pin=17,18&open=1
document.title = data.title + ' – perfweave';
$('title').textContent = data.title;
$('began').textContent = data.wall ? `0 is ${date(0)}` : 'date not known';
Object.assign(document.body.dataset, { events: data.points.length, wakes: wakes.length, runs: data.runs.length, waits: data.waits.length, losses: data.losses.length, ways: ways.length, hangs: data.hangs.length });
function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = name => Number(asked.get(name));
  if (asked.has('way')) view.way = ways[asked.get('way')] || null;
  view.open = !view.way || asked.has('open');
  for (const tid of asked.has('pin') ? asked.get('pin').split(',') : []) if (threadLanes.has(Number(tid))) view.pinned.add(threadLanes.get(Number(tid)));
  view.filter = $('filter').value = asked.get('filter') ?? '';
  layOut();
  if (asked.has('to')) show(number('from'), number('to')); else if (view.way) show(view.way.from - view.way.ns / 20, view.way.to + view.way.ns / 20);
  summary();
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
follow();
